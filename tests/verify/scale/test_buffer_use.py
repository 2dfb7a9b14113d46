"""Buffers that results share on a CPU: faults that are planted in plans are found, and nothing else."""

from __future__ import annotations

from mspc.ir.graph import Graph, Node
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.activation import Tanh
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import ReduceSum
from mspc.runtime.buffers import BufferPlan
from mspc.verify.scale.memory_use import BufferCheck, buffer_plan
from tests.runtime.test_buffers import TYPE, Maker


def said(graph: Graph, buffers: dict[Node, int], size: int = TYPE.nbytes) -> list[str]:
    places, count = {node: [number] for node, number in buffers.items()}, len(buffers)
    plan = BufferPlan(places, [size] * count, [TYPE.nbytes * number for number in range(count)], TYPE.nbytes * count)
    return [misuse.why for misuse in BufferCheck(graph, plan).misuses()]


def test_what_is_overwritten_while_it_is_read() -> None:
    make = Maker()
    x, y = make.values
    product = make.add(MatMul(), x, y)
    view = make.add(Transpose((1, 0)), product)
    tanh = make.add(Tanh(), product)
    graph = make.done(make.add(ReduceSum(), make.add(Add(), view, tanh)))
    assert not said(graph, {product: 0, tanh: 1})
    assert said(graph, {product: 0, tanh: 0}) == ["the result of MatMul is overwritten before it is read"]
    assert said(graph, {product: 0}, 8) == ["its result is larger than its buffer"]
    for compiles in (False, True):
        assert not [*BufferCheck(graph, buffer_plan(graph, compiles)).misuses()]


def test_what_lies_over_operands() -> None:
    make = Maker()
    x, y = make.values
    first = make.add(Tanh(), x)
    second = make.add(Add(), first, make.add(Transpose((1, 0)), first))
    third = make.add(MatMul(), second, y)
    graph = make.done(make.add(ReduceSum(), third))
    over = "a result overwrites its own operand"
    assert not said(graph, {first: 0, second: 1, third: 0})
    assert said(graph, {first: 0, second: 0, third: 1}) == [over]
    assert said(graph, {first: 0, second: 1, third: 1}) == [over]
    for compiles in (False, True):
        assert not [*BufferCheck(graph, buffer_plan(graph, compiles)).misuses()]


def test_a_result_that_the_next_step_overwrites() -> None:
    make = Maker()
    x, _ = make.values
    tanh = make.add(Tanh(), x)
    graph = make.done(make.add(Transpose((1, 0)), tanh))
    assert said(graph, {tanh: 0}) == ["a result of the step is in a buffer that the next step overwrites"]
    assert not buffer_plan(graph, compiles=False).places
