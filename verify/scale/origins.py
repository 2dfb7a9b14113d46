"""Says which node of the real programs a node of the small ones is."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.ir.graph import Graph, Node
from mspc.runtime.faults.failure import NodeFailure

NUMBER = "real_node"
"""The attribute that numbers a node, and is copied with it."""


class FailedHere(Exception):
    """A node of a small program cannot be computed. node: None where it is not known."""

    def __init__(self, node: Node | None) -> None:
        super().__init__("a node cannot be computed at small sizes")
        self.node = node


def numbered(graphs: Iterable[Graph]) -> list[Node]:
    """The nodes of some programs by their numbers, which they get."""
    found = [node for graph in graphs for each in graph.graphs() for node in each.nodes]
    for number, node in enumerate(found):
        node.attrs[NUMBER] = number
    return found


def alike_nodes(nodes: Iterable[Node], node: Node) -> list[Node]:
    """The nodes that are of the same operator on the same line of the script, as those of equal layers."""
    return [each for each in nodes if each.op.name == node.op.name and each.frames == node.frames]


def failed_node(graph: Graph, failure: NodeFailure) -> Node | None:
    """The node of a program that has failed."""
    for each in graph.graphs():
        if failure.region in ("", each.name) and 0 <= failure.index < len(each.nodes):
            return each.nodes[failure.index]
    return None
