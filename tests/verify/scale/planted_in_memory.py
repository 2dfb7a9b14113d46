"""Faults planted in plans of memory: `python -m tests.verify.scale.planted_in_memory SEED COUNT`.

Each seed draws a network, whose collectives are on side streams, and plans its memory. Then a value gets a place that
others have, or a node does not wait for a collective any more. The verdict is held to steps that are run in planned
memory, in several orders of the streams (`tests/runtime/two_streams.py`): a plan that gives other numbers in some order
has to be found, and one that is not found gives the same in all. Plans without a fault raise no alarm.

Prints counts and the seeds of those that were missed; exits with 1 where there are any.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

from mspc.ir.graph import Graph, Node
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import plan_memory
from mspc.verify.scale.memory_use import memory_misuses
from tests.runtime.test_memory_plan import compare, network
from tests.verify.scale.counted_faults import counted

ORDERS = 12
MISSED, FALSE = "missed", "said of a plan without a fault"


def moved(graph: Graph, plan: MemoryPlan, rng: random.Random) -> MemoryPlan | None:
    """A plan in which a node's result has the place of another one."""
    nodes = [n for n in graph.nodes if n in plan.places and any(p.kind == "arena" for p in plan.places[n])]
    made = [n for n in nodes if not n.op.is_view and len(plan.places[n]) == 1 and not n.op.mutates]
    if len(made) < 2:
        return None
    node, other = rng.sample(made, 2)
    (place,) = plan.places[node]
    offset = min(plan.places[other][0].offset, plan.arena - place.nbytes)
    if offset == place.offset or offset < 0:
        return None
    own = replace(place, offset=offset)
    places = {v: tuple(own if p == place and _shows(v, node) else p for p in found) for v, found in plan.places.items()}
    return replace(plan, places=places, buckets={})


def _shows(value: object, node: Node) -> bool:
    while isinstance(value, Node) and value is not node and value.op.is_view:
        value = value.inputs[0]
    return value is node


def unawaited(graph: Graph, plan: MemoryPlan, rng: random.Random) -> MemoryPlan | None:
    """A plan in which a node does not wait."""
    if not plan.waits:
        return None
    node = rng.choice([n for n in graph.nodes if n in plan.waits])
    return replace(plan, waits={n: others for n, others in plan.waits.items() if n is not node})


def outcome(seed: int) -> str:
    """The verdict on a plan with a fault, and the result of steps that are run by it."""
    rng = random.Random(seed)
    graph, values = network(seed, rng.randrange(12))
    plan = plan_memory(graph, alignment=16)
    if any(memory_misuses(graph, plan, early=False)):
        return FALSE
    way = rng.choice([moved, unawaited])
    wrong = way(graph, plan, rng)
    if wrong is None:
        return "no place for a fault"
    found = any(memory_misuses(graph, wrong, early=False))
    try:
        for order in range(ORDERS):
            compare(graph, wrong, values, order)
    except (AssertionError, ValueError, FloatingPointError, IndexError):
        return f"{way.__name__}: found" if found else MISSED
    return f"{way.__name__}: {'found, and the same in the orders that were run' if found else 'changes nothing'}"


if __name__ == "__main__":
    sys.exit(counted(outcome, (MISSED, FALSE)))
