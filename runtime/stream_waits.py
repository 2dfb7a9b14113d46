"""Finds where the streams of a step wait for each other; memory_plan.py says what streams there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mspc.ir.graph import Node, Value
from mspc.ops.collective.stage_messages import ReceiveFromStage
from mspc.runtime.memory import MESSAGES, side_stream
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
        if isinstance(node.op, ReceiveFromStage) and len(sending) > early:  # between GPUs the last one may go on
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
