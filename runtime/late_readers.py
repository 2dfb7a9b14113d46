"""Finds values that show a parameter, and are read when it has been updated: they need memory of their own."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.runtime.memory_classes import Part, Parts


def late_readers(graph: Graph, shown: Parts) -> dict[Node, None]:
    """Nodes whose result shows a parameter and is read after, or by, a later update of that parameter. shown: the
    memory of every value, where nothing is copied."""
    updates: dict[Part, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for part in _written(node, shown):
            if isinstance(part, Parameter):
                updates.setdefault(part, []).append(index)
    if not updates:
        return {}
    reach: dict[Value, int] = {value: len(graph.nodes) for value in graph.results}
    found: list[Node] = []
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        until = reach.get(node, index)
        for part in shown[node]:
            if isinstance(part, Parameter) and any(index < k <= until for k in updates.get(part, ())):
                found.append(node)
                break
        # What is copied is read here; what only shows is read as long as its own readers last.
        shows = node.op.is_view and not (found and found[-1] is node)
        mutates = set(node.op.mutates)
        for operand, value in enumerate(node.inputs):
            if operand not in mutates and isinstance(value, Node):
                reach[value] = max(reach.get(value, 0), until if shows else index)
    return dict.fromkeys(reversed(found))


def _written(node: Node, shown: Mapping[Value, tuple[Part, ...]]) -> list[Part]:
    """The memory that a node overwrites."""
    return [shown[node.inputs[operand]][0] for operand in node.op.mutates]
