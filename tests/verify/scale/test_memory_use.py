"""Memory that values share, on streams: faults that are planted in plans are found, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from mspc.ir.graph import Node
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.activation import Tanh
from mspc.ops.optim.optimizer import AssignAdd
from mspc.runtime.memory import Allocation, MemoryPlan
from mspc.verify.scale.memory_use import MemoryCheck, Occupancy
from tests.runtime.test_memory_plan import Maker, all_reduce


def said(maker: Maker, plan: MemoryPlan) -> list[str]:
    return [misuse.why for misuse in MemoryCheck(maker.graph, plan, early=False).misuses()]


def test_pieces_are_cut_where_others_are_written() -> None:
    occupancy = Occupancy()
    occupancy.write(0, 100, "a", (0, ""))
    occupancy.write(40, 60, "b", (1, ""))
    occupancy.write(90, 120, "c", (2, ""))
    assert [(p.begin, p.end, p.owner) for p in occupancy.over(0, 200)] == [
        (0, 40, "a"), (40, 60, "b"), (60, 90, "a"), (90, 120, "c"),
    ]  # fmt: skip
    assert [p.owner for p in occupancy.over(60, 90)] == ["a"]
    assert not occupancy.over(120, 130)


def moved(plan: MemoryPlan, node: Node, to: Node) -> MemoryPlan:
    (place,) = plan.places[node]
    own: tuple[Allocation, ...] = (replace(place, offset=plan.places[to][0].offset),)
    return replace(plan, places={**plan.places, node: own})


def test_a_buffer_that_is_given_too_early() -> None:
    maker = Maker()
    first = maker.add(MatMul(), maker.x, maker.w)
    second = maker.add(MatMul(), first, maker.w)
    third = maker.add(MatMul(), second, maker.w)
    last = maker.add(MatMul(), first, third)
    plan = maker.done(last)
    assert not said(maker, plan)
    assert "overwritten before it is read" in said(maker, moved(plan, third, first))[0]
    assert "a result overwrites its own operand" in said(maker, moved(plan, second, first))


def test_a_wait_that_is_missing() -> None:
    maker = Maker()
    made = maker.add(MatMul(), maker.x, maker.w)
    summed = maker.add(all_reduce(), made, side=True)
    beside = maker.add(Tanh(), maker.x)
    last = maker.add(MatMul(), summed, beside)
    plan = maker.done(last)
    assert not said(maker, plan)
    assert "may not be there yet" in said(maker, replace(plan, waits={}))[0]
    assert "comes later" in said(maker, replace(plan, waits={**plan.waits, made: (summed,)}))[0]


def test_a_parameter_that_is_updated_while_a_collective_reads_it() -> None:
    maker = Maker()
    summed = maker.add(all_reduce(), maker.w, side=True)
    update = maker.add(AssignAdd(), maker.w, maker.x)
    plan = maker.done(summed, update)
    assert not said(maker, plan)
    assert "which may run still" in said(maker, replace(plan, waits={}))[0]
