"""Planned memory of results: used again once dead, never while something may look into it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.collective.point_to_point import Barrier, Send
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.math.arithmetic import Add, AddN, Mul
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.activation import GeLU, Tanh
from mspc.ops.nn.norm import LayerNorm
from mspc.ops.nn.softmax import Softmax
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Reshape
from mspc.runtime import buffers, plan
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.executor import Executor

SIDE = 80
SHAPE = (SIDE, SIDE)
TYPE = TensorType(FLOAT32, SHAPE)


class Maker:
    """A graph of square matrices, all of them large enough for a buffer."""

    def __init__(self, inputs: int = 2) -> None:
        self.graph = Graph("net")
        self.values: list[Value] = [Parameter(f"x{i}", TYPE) for i in range(inputs)]
        self.graph.parameters = list(self.values)  # type: ignore[arg-type]

    def add(self, op: Op, *inputs: Value) -> Node:
        node = Node(op, list(inputs), op.infer(*[value.type for value in inputs]))  # type: ignore[arg-type]
        self.graph.nodes.append(node)
        return node

    def done(self, *results: Value) -> Graph:
        self.graph.results = list(results)
        return self.graph


def arrays(count: int = 2) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(SHAPE).astype(np.float32) / 8 for _ in range(count)]


def places(graph: Graph) -> dict[int, int]:
    """The address of the buffer of every node that has one."""
    last_use = {value: index for index, node in enumerate(graph.nodes) for value in node.inputs}
    last_use |= dict.fromkeys(graph.results, len(graph.nodes))
    kernels = buffers.buffered_kernels(graph, NumPyBackend(OneRank()), last_use)
    return {index: kernel.keywords["out"].ctypes.data for index, kernel in kernels.items()}  # type: ignore[attr-defined]


def test_a_dead_result_makes_room() -> None:
    make = Maker()
    x, y = make.values
    first = make.add(MatMul(), x, y)
    second = make.add(MatMul(), first, y)
    third = make.add(MatMul(), second, y)
    found = places(make.done(make.add(ReduceSum(), third)))
    assert set(found) == {0, 1, 2}
    assert found[0] == found[2]
    assert found[0] != found[1]


def test_elementwise_operators_write_to_a_dying_operand() -> None:
    make = Maker()
    x, y = make.values
    product = make.add(MatMul(), x, y)
    out = make.add(GeLU(), make.add(Add(), y, make.add(Tanh(), product)))
    found = places(make.done(make.add(ReduceSum(), out)))
    assert len(found) == 4
    assert len(set(found.values())) == 1


class _Alone(OneRank):
    """Takes what is sent, and throws it away."""

    def send(self, array: Any, rank: int, tag: int = 0) -> None: ...

    def barrier(self, ranks: Any) -> None: ...


@pytest.mark.parametrize("op", [Send(dest_rank=1), Barrier(rank_list=(0, 1))], ids=["Send", "Barrier"])
def test_what_hands_its_operand_through_keeps_the_buffer(op: Op) -> None:
    """A tensor that is sent, or that waits at a barrier, stays the same array."""
    make = Maker()
    x, y = make.values
    tanh = make.add(Tanh(), x)
    through: Value = make.add(op, tanh)
    through = make.add(TupleGetItem(0), through) if isinstance(op, Barrier) else through
    other = make.add(Tanh(), y)
    graph = make.done(make.add(ReduceSum(), make.add(Add(), through, other)))
    results = Executor(graph, NumPyBackend(_Alone()), {}).run(arrays())
    a, b = arrays()
    np.testing.assert_allclose(results[0], (np.tanh(a) + np.tanh(b)).sum(dtype=np.float32), rtol=1e-5)


def test_results_and_views_of_them_are_the_callers_own() -> None:
    make = Maker()
    x, y = make.values
    tanh, view = make.add(Tanh(), x), make.add(Reshape((SIDE * SIDE,)), make.add(Tanh(), y))
    graph = make.done(tanh, view)
    assert places(graph) == {}
    executor = Executor(graph, NumPyBackend(OneRank()), {})
    first = executor.run(arrays())
    kept = [array.copy() for array in first]
    executor.run([array * 2 for array in arrays()])
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))


def test_small_results_have_no_buffer() -> None:
    graph = Graph("net")
    x = Parameter("x", TensorType(FLOAT32, (8, 8)))
    node = Node(Tanh(), [x], x.type)
    graph.parameters, graph.nodes = [x], [node, Node(ReduceSum(), [node], TensorType(FLOAT32, ()))]
    graph.results = [graph.nodes[-1]]
    assert places(graph) == {}


def test_a_step_makes_no_large_arrays() -> None:
    import tracemalloc

    make = Maker()
    x, y = make.values
    value: Value = x
    for _ in range(20):
        value = make.add(GeLU(), make.add(Add(), value, make.add(MatMul(), value, y)))
    executor = Executor(make.done(make.add(ReduceSum(), value)), NumPyBackend(OneRank()), {})
    inputs = arrays()
    executor.run(inputs)
    tracemalloc.start()
    executor.run(inputs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * TYPE.size * 4  # the scratch of a block, as large as a small matrix


def test_a_result_that_may_be_an_operand_is_no_buffer() -> None:
    make = Maker()
    x, _ = make.values
    graph = make.done(make.add(AddN(), make.add(Tanh(), x)))
    run = Executor(graph, NumPyBackend(OneRank()), {})
    inputs = arrays()
    (first,) = run.run(inputs)
    before = np.array(first)
    run.run(inputs[::-1])
    np.testing.assert_array_equal(first, before)


def random_graph(rng: random.Random) -> Graph:
    """Products, elementwise operators, views, tuples; reads of old values keep some alive for long."""
    make = Maker(3)
    values = list(make.values)
    for _ in range(rng.randrange(5, 40)):
        x, y = (rng.choice(values[-4:] if rng.random() < 0.7 else values) for _ in range(2))
        kind = rng.randrange(8)
        if kind == 0:
            made = make.add(MatMul(rng.random() < 0.5, rng.random() < 0.5), x, y)
        elif kind == 1:
            made = make.add(rng.choice([Tanh(), GeLU(), Softmax(rng.choice([0, 1]))]), x)
        elif kind == 2:
            made = make.add(rng.choice([Add(), Mul()]), x, y)
        elif kind == 3:
            made = make.add(Transpose((1, 0)), x)
        elif kind == 4:
            made = make.add(Reshape(SHAPE), make.add(Reshape((SIDE // 2, SIDE * 2)), x))
        elif kind == 5:
            made = make.add(TupleGetItem(rng.randrange(2)), make.add(MakeTuple(), x, y))
        elif kind == 6:
            made = make.add(AddN(), x, y, rng.choice(values))
        else:
            row = make.add(ReduceSum(axis=(0,)), x)
            norm = make.add(LayerNorm(begin_norm_axis=1, begin_params_axis=1), y, row, row)
            made = make.add(TupleGetItem(0), norm)
        values.append(made)
    return make.done(*rng.sample(values[3:], min(3, len(values) - 3)))


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_give_what_they_give_without_buffers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(random.Random(seed))
    planned = Executor(graph, NumPyBackend(OneRank()), {})
    monkeypatch.setattr(plan, "buffered_kernels", lambda *_: {})
    plain = Executor(graph, NumPyBackend(OneRank()), {})
    inputs = arrays(3)
    for _ in range(2):
        for found, expected in zip(planned.run(inputs), plain.run(inputs), strict=True):
            # Plain arrays may lie in another order, in which sums differ in their last bits.
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert all(np.array_equal(a, b) for a, b in zip(inputs, arrays(3), strict=True))


def test_an_element_of_a_tuple_is_dead_when_it_was_taken_last() -> None:
    """The statistics of a normalization are read late, by its gradient."""
    make = Maker(1)
    (x,) = make.values
    gamma, beta = (Parameter(name, TensorType(FLOAT32, (SIDE,))) for name in ("gamma", "beta"))
    make.graph.parameters += [gamma, beta]
    norm = make.add(LayerNorm(), make.add(Tanh(), x), gamma, beta)
    tanh = make.add(Tanh(), make.add(TupleGetItem(0), norm))
    mean = make.add(TupleGetItem(1), norm)
    graph = make.done(make.add(ReduceSum(), tanh), make.add(ReduceSum(), mean))
    last_use = {value: index for index, node in enumerate(graph.nodes) for value in node.inputs}
    plan = buffers.plan_buffers(graph, {1, 3}, last_use | dict.fromkeys(graph.results, len(graph.nodes)))
    assert plan.places[tanh][0] == plan.places[norm][0]
    assert plan.nbytes < 2 * TYPE.nbytes


def test_buffers_of_unlike_sizes_share_memory() -> None:
    make = Maker(1)
    (x,) = make.values
    wide = Parameter("wide", TensorType(FLOAT32, (SIDE, 4 * SIDE)))
    make.graph.parameters.append(wide)
    first = make.add(MatMul(), make.add(MatMul(), x, x), wide)
    summed = make.add(ReduceSum(True, 1), first)
    last = make.add(MatMul(), make.add(MatMul(), x, make.add(Add(), x, summed)), x)
    graph = make.done(make.add(ReduceSum(), last))
    last_use = {value: index for index, node in enumerate(graph.nodes) for value in node.inputs}
    plan = buffers.plan_buffers(graph, range(6), last_use | dict.fromkeys(graph.results, len(graph.nodes)))
    assert plan.nbytes == 5 * TYPE.nbytes, "the wide matrix and what it is made of"
