"""New nodes between those of a graph, by the places at which these stand."""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import Type
from mspc.ops.op import Op


class Insertions:
    """Nodes that are made now and put into the graph by `apply`."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ahead: list[list[Node]] = [[] for _ in range(len(graph.nodes) + 1)]

    def put(
        self, place: int, op: Op, inputs: list[Value], type: Type, like: Node, phase: str, stream: str = ""
    ) -> Node:
        """A node ahead of the one at `place`, behind those put there before, at the lines of `like`."""
        made = Node(op, inputs, type, scope=like.scope, frames=like.frames, phase=phase)
        if stream:
            made.attrs["stream"] = stream
        self._ahead[place].append(made)
        return made

    def add(self, place: int, node: Node) -> None:
        """The same for a node that is there already."""
        self._ahead[place].append(node)

    def apply(self) -> None:
        """Put them into the graph."""
        nodes = list(self._ahead[0])
        for place, node in enumerate(self._graph.nodes, 1):
            nodes += (node, *self._ahead[place])
        self._graph.nodes = nodes
