"""Reads and writes of a step's memory: waits between streams, and late reads of updated parameters. memory_plan.py
describes the streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.runtime.memory import MESSAGES, is_received, side_stream
from mspc.runtime.memory_classes import Part, Parts


def find_waits(
    nodes: Sequence[Node], runs: Callable[[Node], bool], parts: Parts, copy_of: Mapping[Value, Node], early: bool
) -> tuple[dict[Node, tuple[Node, ...]], dict[int, int]]:  # fmt: skip
    """Return (for a node those of other streams that must be over before it starts, for the index of a node of a side
    stream the index from which the main stream knows that it is over).

    Args:
        runs: whether a node is launched. parts: the memory of every value. copy_of: the node that stores a copy of a
        parameter. early: see `plan_memory`.
    """
    found: dict[Node, tuple[Node, ...]] = {}
    over: dict[int, int] = {}
    made: dict[Part, int] = {}
    read: dict[tuple[str, Part], int] = {}
    running: dict[str, list[int]] = {}
    sides = [side_stream(node) for node in nodes]
    for index, node in enumerate(nodes):
        if not runs(node):
            continue
        side = sides[index]
        latest: dict[str, int] = {}
        for value in node.inputs:
            for part in parts[value]:
                if part in made:
                    name = sides[made[part]]
                    latest[name] = max(latest.get(name, -1), made[part])
        for operand in node.op.mutates:
            value = node.inputs[operand]
            written = [parts[value][0], *parts.get(copy_of.get(value, value), ())]
            for name in running:
                latest[name] = max(latest.get(name, -1), *(read.get((name, part), -1) for part in written))
        sending = running.get(MESSAGES, ())
        if is_received(node) and len(sending) > early:  # between GPUs the last one may still run
            latest[MESSAGES] = max(latest.get(MESSAGES, -1), sending[-1 - early])
        waits: list[Node] = []
        for name, last in latest.items():
            queue = running.get(name, [])
            if name == side or not queue or last < queue[0]:
                continue
            waits.append(nodes[last])
            while not side and queue and queue[0] <= last:
                over[queue.pop(0)] = index
        if waits:
            found[node] = tuple(waits)
        if side:
            running.setdefault(side, []).append(index)
            read.update({(side, part): index for value in node.inputs for part in parts[value]})
            made.update(dict.fromkeys(parts[node], index))
    return found, over


def late_readers(graph: Graph, shown: Parts) -> dict[Node, None]:
    """Return the nodes whose result aliases a parameter and is read after, or by, a later update of that parameter.
    shown: the memory of every value if nothing is copied."""
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
        # The operand of a copy is read here; that of a view is read until the view's last reader.
        shows = node.op.is_view and not (found and found[-1] is node)
        mutates = set(node.op.mutates)
        for operand, value in enumerate(node.inputs):
            if operand not in mutates and isinstance(value, Node):
                reach[value] = max(reach.get(value, 0), until if shows else index)
    return dict.fromkeys(reversed(found))


def _written(node: Node, shown: Mapping[Value, tuple[Part, ...]]) -> list[Part]:
    """Return the memory that a node overwrites."""
    return [shown[node.inputs[operand]][0] for operand in node.op.mutates]
