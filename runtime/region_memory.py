"""Memory that a node takes while it runs its graphs, beside that of its operands and results."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.loops import Loop, body_of


def bytes_inside(node: Node, arenas: Mapping[Graph, int]) -> int:
    """Bytes for values of the node's graphs: of the largest, as one runs at a time, and of a loop what a turn was
    given by the one before it. Results of a graph are those of the node, and counted there.

    arenas: of the graphs, which hold their results.
    """
    op = node.op
    if not isinstance(op, Loop):
        return max(max(0, arenas[region] - _bytes_of_results(region)) for region in node.regions)
    body = body_of(node)
    carried = body.results[: op.carried]
    several = op.known_turns([value.type for value in node.inputs]) != 1
    kept = sum(value.type.nbytes for value in carried) if several else 0
    inside = arenas[body] + kept - _bytes_of_results(body, op.carried)
    return max(0, inside, *(arenas[region] for region in node.regions[:-1]))


def _bytes_of_results(graph: Graph, count: int | None = None) -> int:
    """Bytes of the first so many results that nodes make, each once."""
    made: set[Value] = {value for value in graph.results[:count] if isinstance(value, Node)}
    return sum(value.type.nbytes for value in made)
