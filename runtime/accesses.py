"""When memory of a step is read and written: where streams wait for each other, and what is read too late.

memory_plan.py says what streams there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.runtime.memory import MESSAGES, is_received, side_stream
from mspc.runtime.memory_classes import Part, Parts


def find_waits(
    nodes: Sequence[Node], runs: Callable[[Node], bool], parts: Parts, copy_of: Mapping[Value, Node], early: bool
) -> tuple[dict[Node, tuple[Node, ...]], dict[int, int]]:  # fmt: skip
    """(for a node those of other streams that must be over before it starts, for the index of a node of a side stream
    that from which on the main stream knows it to be over).

    Args:
        runs: whether a node is launched. parts: the memory of every value. copy_of: what keeps copies of parameters.
        early: see `plan_memory`.
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
        if is_received(node) and len(sending) > early:  # between GPUs the last one may go on
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
