"""Faults planted in the buffers of CPUs: `python -m tests.verify.scale.planted_in_buffers SEED COUNT`.

Each seed draws a graph and plans the buffers of its results. Then a result gets the buffer of another one. The verdict
is held to two steps that are run by it: a plan that gives other numbers has to be found. Plans without a fault raise no
alarm.

Prints counts and the seeds of those that were missed; exits with 1 where there are any.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from mspc.ir.graph import Graph, Node
from mspc.ops.control.structural import TupleGetItem
from mspc.runtime import buffers
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.buffers import BufferPlan
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.executor import Executor
from mspc.verify.scale.memory_use import buffer_misuses, buffer_plan
from tests.runtime.test_buffers import arrays, random_graph
from tests.verify.scale.counted_faults import counted

MISSED, FALSE = "missed", "said of a plan without a fault"


def moved(graph: Graph, plan: BufferPlan, rng: random.Random) -> BufferPlan | None:
    """A plan in which a result has the buffer of another one."""
    made = [node for node in graph.nodes if node in plan.places and not isinstance(node.op, TupleGetItem)]
    if not made:
        return None
    node = rng.choice(made)
    number = rng.randrange(len(plan.places[node]))
    own = plan.places[node][number]
    fitting = [buffer for buffer, size in enumerate(plan.sizes) if buffer != own and size >= plan.sizes[own]]
    if not fitting:
        return None
    other = rng.choice(fitting)
    changed = list(plan.places[node])
    changed[number] = other
    places = {value: [*found] for value, found in plan.places.items()} | {node: changed}
    for value in places:
        if isinstance(value, Node) and isinstance(value.op, TupleGetItem) and value.inputs[0] is node:
            places[value] = [changed[value.op.index]]
    return replace(plan, places=places)


def steps(graph: Graph, plan: BufferPlan) -> list[Any]:
    """The results of two steps."""
    with mock.patch.object(buffers, "plan_buffers", return_value=plan):
        run = Executor(graph, NumPyBackend(OneRank()), {})
    return [np.array(result) for _ in range(2) for result in run.run(arrays(3))]


def outcome(seed: int) -> str:
    """The verdict on a plan with a fault, and the result of steps that are run by it."""
    rng = random.Random(seed)
    graph = random_graph(rng)
    plan = buffer_plan(graph, compiles=False)
    if any(buffer_misuses(graph, plan)):
        return FALSE
    wrong = moved(graph, plan, rng)
    if wrong is None:
        return "no place for a fault"
    found = any(buffer_misuses(graph, wrong))
    same = all(
        np.allclose(a, b, 1e-3, 1e-3 * np.abs(a).max(), equal_nan=True)
        for a, b in zip(steps(graph, plan), steps(graph, wrong), strict=True)
    )
    if same:
        return "found, and the same" if found else "changes nothing"
    return "found" if found else MISSED


if __name__ == "__main__":
    sys.exit(counted(outcome, (MISSED, FALSE)))
