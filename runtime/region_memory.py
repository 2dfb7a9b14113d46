"""Memory that a node takes while it runs its graphs, in addition to that of its operands and results."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import StackType
from mspc.ops.control.regions import Loop, body_of

DEVICE_ALIGNMENT = 256
"""Bytes to which places on a GPU are aligned."""


def bytes_inside(node: Node, arenas: Mapping[Graph, int]) -> int:
    """Return the bytes for values of the node's graphs: of the largest graph, as one runs at a time, and for a loop the
    values carried from the previous iteration. Results of a graph are those of the node, and counted there.

    arenas: sizes of the graphs' arenas, which include their results.
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
    """Return the bytes of the first `count` results that nodes make, each once."""
    made: set[Value] = {value for value in graph.results[:count] if isinstance(value, Node)}
    return sum(value.type.nbytes for value in made)


def device_bytes_inside(node: Node, arenas: Mapping[Graph, int]) -> int:
    """Return the same on a GPU: all results of a graph have places in its arena, carried values use the places of the
    node's results, and the entries of an iteration have places of their own, which come first."""
    return device_bytes_of_entries(node) + max(arenas[region] for region in node.regions)


def device_bytes_of_entries(node: Node) -> int:
    """Return the bytes on a GPU for the entries that an iteration of a loop reads."""
    op = node.op
    if not isinstance(op, Loop):
        return 0
    types = [body_of(node).parameters[op.leading + op.carried + i].type for i in range(op.scanned)]
    sizes = [type.nbytes for type in types if not isinstance(type, StackType)]
    return sum(-(-size // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT for size in sizes)
