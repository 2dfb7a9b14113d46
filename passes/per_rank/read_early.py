"""Moves nodes whose results the host reads from a GPU before work that does not
need them, so that the host has them for the first launch that depends on them.

Input:  `%1 = TopK(%0)`, `%2 = Sort(%1)`, `%3 = Gather(%x, %2)`, `%4 = Counts(%1)`, `%5 = GroupedProduct(%3, %w, %4)`
Output: `%1 = TopK(%0)`, `%4 = Counts(%1)`, `%2 = Sort(%1)`, `%3 = Gather(%x, %2)`, `%5 = GroupedProduct(%3, %w, %4)`

Only nodes with small results move, which neither communicate nor change anything, and none past a node that does, or
from the backward part into the forward part.
"""

from __future__ import annotations

from collections.abc import Iterable

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.iterative import reached
from mspc.passes.base import Pass

SMALL = 1 << 20
"""Bytes of results up to which a node moves: they live longer then."""


class ReadEarly(Pass):
    """Put the nodes that make values for the host right after their operands."""

    def run(self, graph: Graph) -> bool:
        # Nodes that make values for the host, and those that they wait for, as far as they may move.
        own = set(graph.nodes)

        def wait(values: Iterable[Value]) -> list[Node]:
            return [value for value in values if isinstance(value, Node) and value in own and _moves(value)]

        read = wait(node.inputs[i] for node in graph.nodes for i in node.op.host_reads)
        wanted = {*reached(read, lambda node: wait(node.inputs))}
        if not wanted:
            return False
        behind: list[list[Node]] = [[] for _ in range(len(graph.nodes) + 1)]
        found: dict[Value, int] = {}  # the number of nodes after which the host's are put
        fence, phase = 0, ""
        for place, node in enumerate(graph.nodes):
            fence, phase = fence if node.phase == phase else place, node.phase
            found[node] = place + 1
            if node in wanted:
                found[node] = max([fence, *(found.get(value, 0) for value in node.inputs)])
                behind[found[node]].append(node)
            elif _is_bar(node):
                fence = place + 1
        nodes = list(behind[0])
        for place, node in enumerate(graph.nodes):
            nodes += [] if node in wanted else [node]
            nodes += behind[place + 1]
        changed = nodes != graph.nodes
        graph.nodes = nodes
        return changed


def _moves(node: Node) -> bool:
    return not (_is_bar(node) or node.op.host_reads) and sum(type.nbytes for type in element_types(node.type)) <= SMALL


def _is_bar(node: Node) -> bool:
    """Return whether a node stays at its place, and others on their side of it."""
    op = node.op
    return bool(op.is_collective or op.has_side_effect or op.mutates or node.regions)
