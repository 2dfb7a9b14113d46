"""Compares plans of layouts of a graph: what each costs, which is taken, and how the graph takes it on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mspc.ir.graph import Node, Value
from mspc.ir.late_dataclass import dataclass

MORE_BYTES = 1.1
"""How many times the fewest bytes a plan of fewer messages may send."""


@dataclass(frozen=True)
class PlanTotal:
    """What a plan costs a rank: bytes sent, changes of layout, points of the products' iteration spaces."""

    nbytes: float
    moves: int
    work: float


State = tuple[Any, Any, Any]
"""A value's operator, whose form goes by the layouts, the layouts of its operands, and its own."""


def state_of(value: Value) -> State:
    return (value.op, value.in_layouts, value.layout) if isinstance(value, Node) else (None, None, value.layout)


def restore(values: Iterable[Value], states: Iterable[State]) -> None:
    for value, (op, operands, layout) in zip(values, states, strict=True):
        value.layout = layout
        if isinstance(value, Node):
            value.op, value.in_layouts = op, operands


def best_plan(found: Sequence[tuple[PlanTotal, list[State]]]) -> list[State]:
    """Of several plans the one that is taken. The last looks for the fewest bytes at every operator alone; another is
    taken where it does no more work, and sends fewer bytes, or hardly more in fewer changes of layout, than that and
    than any other such plan."""
    *others, (fewest, free) = found
    good = [
        (plan.moves, plan.nbytes, i)
        for i, (plan, _) in enumerate(others)
        if plan.work <= fewest.work
        and (plan.nbytes <= fewest.nbytes or (plan.moves < fewest.moves and plan.nbytes <= MORE_BYTES * fewest.nbytes))
    ]
    if not good:
        return free
    least = min(nbytes for _, nbytes, _ in good)
    return found[min(plan for plan in good if plan[1] <= MORE_BYTES * least)[2]][1]
