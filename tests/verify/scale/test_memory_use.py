"""Memory that values share, on streams: faults that are planted in plans are found, and nothing else."""

from dataclasses import replace

from mspc.ir.graph import Graph, Node
from mspc.runtime.buffers import BufferPlan
from mspc.runtime.memory import Allocation, MemoryPlan
from mspc.verify.scale.memory_use import BufferCheck, MemoryCheck, Occupancy, buffer_plan
from tests.operators import Add, AssignAdd, MatMul, ReduceSum, Tanh, Transpose
from tests.runtime.test_buffers import TYPE
from tests.runtime.test_buffers import Maker as BufferMaker
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


def buffer_said(graph: Graph, buffers: dict[Node, int], size: int = TYPE.nbytes) -> list[str]:
    places, count = {node: [number] for node, number in buffers.items()}, len(buffers)
    plan = BufferPlan(places, [size] * count, [TYPE.nbytes * number for number in range(count)], TYPE.nbytes * count)
    return [misuse.why for misuse in BufferCheck(graph, plan).misuses()]


def test_what_is_overwritten_while_it_is_read() -> None:
    make = BufferMaker()
    x, y = make.values
    product = make.add(MatMul(), x, y)
    view = make.add(Transpose((1, 0)), product)
    tanh = make.add(Tanh(), product)
    graph = make.done(make.add(ReduceSum(), make.add(Add(), view, tanh)))
    assert not buffer_said(graph, {product: 0, tanh: 1})
    assert buffer_said(graph, {product: 0, tanh: 0}) == ["the result of MatMul is overwritten before it is read"]
    assert buffer_said(graph, {product: 0}, 8) == ["its result is larger than its buffer"]
    for compiles in (False, True):
        assert not [*BufferCheck(graph, buffer_plan(graph, compiles)).misuses()]


def test_what_lies_over_operands() -> None:
    make = BufferMaker()
    x, y = make.values
    first = make.add(Tanh(), x)
    second = make.add(Add(), first, make.add(Transpose((1, 0)), first))
    third = make.add(MatMul(), second, y)
    graph = make.done(make.add(ReduceSum(), third))
    over = "a result overwrites its own operand"
    assert not buffer_said(graph, {first: 0, second: 1, third: 0})
    assert buffer_said(graph, {first: 0, second: 0, third: 1}) == [over]
    assert buffer_said(graph, {first: 0, second: 1, third: 1}) == [over]
    for compiles in (False, True):
        assert not [*BufferCheck(graph, buffer_plan(graph, compiles)).misuses()]


def test_a_result_that_the_next_step_overwrites() -> None:
    make = BufferMaker()
    x, _ = make.values
    tanh = make.add(Tanh(), x)
    graph = make.done(make.add(Transpose((1, 0)), tanh))
    assert buffer_said(graph, {tanh: 0}) == ["a result of the step is in a buffer that the next step overwrites"]
    assert not buffer_plan(graph, compiles=False).places
