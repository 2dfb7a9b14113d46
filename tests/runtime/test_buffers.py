"""Planned memory of results: used again once dead, never while something may look into it.

Memory of a GPU beside a plan, as it was measured on one where that is known.
"""

import random
from typing import Any

import numpy as np
import pytest

from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.convolution.convolve import Conv2D, Conv2DBackpropFilter
from mspc.ops.math.arithmetic import Add, AddN, Mul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.tensor.reshape import ReduceSum, Reshape
from mspc.runtime import buffers, plan
from mspc.runtime.workspaces import CONVOLUTION, PRODUCTS, cpu_kernel_bytes, scratch_bytes, workspace_bytes
from tests.executors import Executor, NumPyBackend, OneRank
from tests.graphs import BFLOAT16, FLOAT32, FLOAT64, Builder, DType, Graph, Node, Op, Parameter, TensorType, Value
from tests.operators import Barrier, FusedMatMul, GeLU, LayerNorm, MatMul, Send, Softmax, Tanh, Transpose

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


def last_uses(graph: Graph) -> dict[Value, int]:
    found = {value: index for index, node in enumerate(graph.nodes) for value in node.inputs}
    return found | dict.fromkeys(graph.results, len(graph.nodes))


def places(graph: Graph) -> dict[int, int]:
    """The address of the buffer of every node that has one."""
    kernels = buffers.buffered_kernels(graph, NumPyBackend(OneRank()), last_uses(graph))
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
    plan = buffers.plan_buffers(graph, {1, 3}, last_uses(graph))
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
    plan = buffers.plan_buffers(graph, range(6), last_uses(graph))
    assert plan.nbytes == 5 * TYPE.nbytes, "the wide matrix and what it is made of"


MIB = 1 << 20


def graph_of(op: Any, dtype: DType, *shapes: tuple[int, ...]) -> Graph:
    graph = Graph("one")
    graph.parameters = [Parameter(f"p{i}", TensorType(dtype, s), "parameter", False) for i, s in enumerate(shapes)]
    Builder(graph).emit(op, *graph.parameters)
    return graph


def test_sums_need_nothing_and_products_what_they_share() -> None:
    assert workspace_bytes(graph_of(Add(), FLOAT32, (8,), (8,))) == 0
    assert workspace_bytes(graph_of(MatMul(), FLOAT32, (8, 8), (8, 8))) == PRODUCTS


@pytest.mark.parametrize(("dtype", "forward", "backward"),
                         [(FLOAT64, 1536, 2944), (FLOAT32, 0, 2), (BFLOAT16, 0, 0)])  # fmt: skip
def test_attention_where_products_stand_for_a_kernel(dtype: DType, forward: int, backward: int) -> None:
    """An H200 took 768 MiB and 1472 MiB for these of a transformer's layer in Float32, when it had no
    kernel."""
    batch, heads, length, depth = 8, 16, 1024, 128
    packed = (batch, length, 3 * heads, depth)
    settings: dict[str, Any] = {"scale_value": depth**-0.5, "input_layout": "BSND", "packed": heads}
    graph = graph_of(FlashAttentionScore(heads, **settings), dtype, packed)
    assert scratch_bytes(graph) == forward * MIB
    out, statistics = (batch, length, heads, depth), (batch, heads, length, 1)
    graph = graph_of(FlashAttentionScoreGrad(heads, **settings), dtype, packed, out, statistics, out)
    assert scratch_bytes(graph) == backward * MIB


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_attention_with_two_addends_has_kernels(dtype: DType) -> None:
    """No sum of both is made, and the gradient of the first is summed over the batch in registers."""
    batch, heads, length, depth = 8, 16, 1024, 64
    settings: dict[str, Any] = {"input_layout": "BSND", "packed": heads, "optional": ("real_shift", "key_shift")}
    packed, out = (batch, length, 3 * heads, depth), (batch, length, heads, depth)
    statistics = (batch, heads, length, 1)
    added = (1, heads, length, length), (batch, 1, 1, length)
    assert scratch_bytes(graph_of(FlashAttentionScore(heads, **settings), dtype, packed, *added)) == 0
    for shape, nbytes in ((added[0], 2 * MIB), ((1, heads, 1, length), 2 * 512 * MIB)):
        op = FlashAttentionScoreShiftGrad(heads, result_shape=shape, **settings)
        found = scratch_bytes(graph_of(op, dtype, packed, out, *added, statistics, out))
        assert nbytes <= found < 2 * nbytes


def test_convolutions_by_their_operands() -> None:
    small = graph_of(Conv2D(out_channel=16, kernel_size=3, pad_mode="same"), FLOAT32, (2, 16, 8, 8), (16, 16, 3, 3))
    assert scratch_bytes(small) == CONVOLUTION
    large = graph_of(Conv2D(out_channel=64, kernel_size=1), FLOAT32, (64, 64, 112, 112), (64, 64, 1, 1))
    assert scratch_bytes(large) == CONVOLUTION
    strided = graph_of(Conv2D(out_channel=64, kernel_size=1, stride=2), FLOAT32, (64, 64, 112, 112), (64, 64, 1, 1))
    assert scratch_bytes(strided) == CONVOLUTION + 64 * 64 * 56 * 56 * 4
    of_colours = graph_of(Conv2D(out_channel=16, kernel_size=3), FLOAT32, (2, 3, 8, 8), (16, 3, 3, 3))
    assert scratch_bytes(of_colours) == CONVOLUTION + 2 * (2 * 3 * 8 * 8 * 4)


@pytest.mark.parametrize(("addend", "mib"), [(True, 8), (False, 0)], ids=["the addend is copied", "nothing"])
def test_kernels_of_a_cpu_count_the_copy_of_an_addend(addend: bool, mib: int) -> None:
    shapes = [(8, 512, 512), (512, 512), *[(8, 512, 512)] * addend]
    assert cpu_kernel_bytes(graph_of(FusedMatMul(addend=addend), FLOAT32, *shapes)) == mib * MIB


def test_kernels_of_a_cpu_count_the_packed_operand_of_a_convolution() -> None:
    """32.0 MiB were measured, with a few KiB more."""
    image, weights = (16, 32, 128, 128), (32, 32, 3, 3)
    op = Conv2DBackpropFilter(filter_size=weights, out_channel=32, kernel_size=(3, 3), pad_mode="same")
    assert cpu_kernel_bytes(graph_of(op, FLOAT32, image, image)) == pytest.approx(32 * MIB, rel=0.1)
