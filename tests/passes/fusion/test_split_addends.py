"""split_addends and sum_in_kernels: attention whose scores get a bias and a padding mask as numbers, in many words."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, TensorType
from mspc.ops.nn.attention_base import AttentionOp
from mspc.passes.fusion.fuse_attention import FuseAttention
from mspc.passes.fusion.split_addends import SplitAddends
from mspc.passes.fusion.sum_in_kernels import SumInKernels
from tests.executors import Grad, Simplify
from tests.graphs import REGISTRY, Builder, Graph, Node, Parameter, Value, parse, print_graph
from tests.interpret import left_behind, random_feeds, run_global, same
from tests.operators import FlashAttentionScore, Gradient, TupleGetItem
from tests.passes.fusion.masked_attention import BATCH, HEADS, KEYS, LOWEST, QUERIES, Masked
from tests.shares import crossed

SCORES = (BATCH, HEADS, QUERIES, KEYS)
PRESENT = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
"""Every key of the second member of the batch is padding."""
BUCKETS = np.arange(QUERIES * KEYS).reshape(QUERIES, KEYS) % 7


class Layers(Masked):
    """Attentions one behind the other, of which each takes the sum of the query and the result of the one before."""

    def two(self, *addends: Value) -> Node:
        return self.attention(self.emit("Add", self.attention(self.query, *addends), self.query), *addends)

    def attention(self, query: Value, *addends: Value) -> Node:
        """In which every addend is added to the scores by itself."""
        scores = self.emit("BatchMatMul", query, self.key, transpose_b=True)
        for addend in addends:
            scores = self.emit("Add", scores, addend)
        return self.emit("BatchMatMul", self.emit("Softmax", scores), self.value)

    def with_gradients(self, result: Value, *others: Parameter) -> Graph:
        wanted = [*self.names, *others]
        found = self.b.emit(Gradient(1, True), result, *wanted, self.parameter("slope", result.shape))
        self.graph.results = [result, *(self.b.emit(TupleGetItem(i), found) for i in range(len(wanted)))]
        self.graph.returns_tuple = True
        return self.graph


Bias = tuple[Value, Parameter]


def per_head(m: Layers) -> Bias:
    made = m.parameter("bias", (1, HEADS, QUERIES, KEYS), kind="parameter")
    return made, made


def of_three_dimensions(m: Layers) -> Bias:
    made = m.parameter("bias", (HEADS, QUERIES, KEYS), kind="parameter")
    return made, made


def of_buckets(m: Layers) -> Bias:
    table = m.parameter("bias", (7, HEADS), kind="parameter")
    rows = m.emit("Gather", table, m.parameter("buckets", (QUERIES, KEYS), INT32), axis=0)
    return m.emit("ExpandDims", m.emit("Transpose", rows, perm=(2, 0, 1)), axis=0), table


def sliced(m: Layers) -> Bias:
    table = m.parameter("bias", (1, HEADS, QUERIES + 3, KEYS + 2), kind="parameter")
    begin, end = (0, 0, 1, 2), (1, HEADS, QUERIES + 1, KEYS + 2)
    return m.emit("StridedSlice", table, begin=begin, end=end, strides=(1, 1, 1, 1)), table


BIASES = [per_head, of_three_dimensions, of_buckets, sliced]


def as_product(m: Layers, number: float) -> Value:
    """(1 - present) * number of (batch, 1, 1, keys)."""
    present = m.emit("Cast", m.parameter("present", (BATCH, KEYS), INT32), dst_type=m.dtype)
    ahead = m.emit("ExpandDims", m.emit("ExpandDims", m.emit("Sub", 1.0, present), axis=1), axis=1)
    return m.emit("Mul", ahead, number)


def as_choice(m: Layers, number: float) -> Value:
    mask = m.emit("Equal", m.parameter("present", (BATCH, KEYS), INT32), m.b.constant(0, INT32))
    return m.emit("Select", m.emit("Reshape", mask, shape=(BATCH, 1, 1, KEYS)), number, 0.0)


def repeated(m: Layers, number: float) -> Value:
    """For every query, behind the work of the mask."""
    return m.emit("BroadcastTo", as_product(m, number), shape=(BATCH, 1, QUERIES, KEYS))


def repeated_first(m: Layers, number: float) -> Value:
    """(batch, keys) as (batch, queries, keys), from which the mask is made."""
    rows = m.emit("ExpandDims", m.parameter("present", (BATCH, KEYS), INT32), axis=1)
    rows = m.emit("Cast", m.emit("BroadcastTo", rows, shape=(BATCH, QUERIES, KEYS)), dst_type=m.dtype)
    return m.emit("Mul", m.emit("Sub", 1.0, m.emit("ExpandDims", rows, axis=1)), number)


def for_heads(m: Layers, number: float) -> Value:
    return m.emit("BroadcastTo", as_choice(m, number), shape=SCORES)


MASKS = [as_product, as_choice, repeated, repeated_first, for_heads]


def run(graph: Graph, **feeds: np.ndarray) -> Graph:
    """Fuse attention, take gradients, split addends and sum in kernels; results stay those of what is written out."""
    before = parse(print_graph(graph), REGISTRY).main
    FuseAttention().run(graph)
    Grad().run(graph)
    Simplify().run(graph)
    SplitAddends().run(graph)
    SumInKernels().run(graph)
    graph.verify()
    again = parse(print_graph(graph), REGISTRY).main
    arrays = random_feeds(before)
    arrays |= {name: feed.astype(arrays[name].dtype) for name, feed in feeds.items() if name in arrays}
    arrays |= {name: array - 1 for name, array in arrays.items() if array.dtype.kind == "f"}
    with np.errstate(all="ignore"):
        same(run_global(again, arrays), run_global(before, arrays))
    return graph


def attentions(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, AttentionOp)]


def of_scores(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.type, TensorType) and node.shape == SCORES]


FEEDS = {"present": PRESENT, "buckets": BUCKETS}


@pytest.mark.parametrize(
    ("bias", "mask", "number", "dtype"), crossed(BIASES, MASKS, [-1e4, -1e9, LOWEST], [FLOAT64, FLOAT32])
)
def test_a_sum_for_several_layers(bias: Any, mask: Any, number: float, dtype: Any) -> None:
    m = Layers(dtype=dtype)
    added, trained = bias(m)
    total = m.emit("Add", added, mask(m, number))
    graph = run(m.with_gradients(m.two(total), trained), **FEEDS)
    assert len(attentions(graph)) == 6
    assert not of_scores(graph)
    for node in attentions(graph):
        given = node.op.named(node.inputs)  # type: ignore[attr-defined]  # an AttentionOp
        assert [math.prod(value.shape[:-2]) for value in given.values()] in ([HEADS, BATCH], [HEADS, 1])


@pytest.mark.parametrize(("bias", "mask", "order"), crossed(BIASES, MASKS, [0, 1]))
def test_every_layer_adds_both(bias: Any, mask: Any, order: int) -> None:
    m = Layers()
    added, trained = bias(m)
    both = [added, mask(m, -1e9)][:: 1 - 2 * order]
    graph = run(m.with_gradients(m.two(*both), trained), **FEEDS)
    assert len(attentions(graph)) == 6
    assert not of_scores(graph)


@pytest.mark.parametrize("narrow", [FLOAT16, BFLOAT16])
def test_a_bias_of_halves_and_a_sum_that_is_cast(narrow: Any) -> None:
    m = Layers()
    bias, trained = per_head(m)
    half = m.emit("Cast", bias, dst_type=narrow)
    wide = m.emit("Add", m.emit("Cast", half, dst_type=FLOAT32), as_product(m, -1e9))
    total = m.emit("Cast", m.emit("Cast", wide, dst_type=BFLOAT16), dst_type=FLOAT32)
    graph = m.with_gradients(m.attention(m.query, total), trained)
    before = parse(print_graph(graph), REGISTRY).main
    for step in (FuseAttention(), Grad(), Simplify(), SplitAddends(), SumInKernels()):
        step.run(graph)
    graph.verify()
    assert not of_scores(graph)
    arrays = random_feeds(before) | {"present": PRESENT.astype(np.int32)}
    for found, wanted in zip(run_global(graph, arrays), run_global(before, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


def direct(build: Callable[[Builder, Value], Sequence[Value]], shape: tuple[int, ...] = SCORES) -> Graph:
    """A call of the operator with an addend that `build` makes of a parameter."""
    graph = Graph("direct")
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    b = Builder(graph)
    q = Parameter("q", TensorType(FLOAT32, (BATCH, HEADS, QUERIES, 2)))
    k = Parameter("k", TensorType(FLOAT32, (BATCH, HEADS, KEYS, 2)))
    given = Parameter("given", TensorType(FLOAT32, shape))
    graph.parameters += [q, k, given]
    addend, *others = build(b, given)
    op = FlashAttentionScore(HEADS, input_layout="BNSD", optional=("real_shift",))
    graph.results = [b.emit(TupleGetItem(3), b.emit(op, q, k, k, addend)), *others]
    return graph


def test_what_is_not_smaller_in_parts_stays() -> None:
    """A bias for every member of the batch, and sums of two rows of keys."""
    for shapes in ([SCORES, (BATCH, 1, 1, KEYS)], [(1, HEADS, 1, KEYS), (1, HEADS, 1, KEYS)]):
        other = Parameter("other", TensorType(FLOAT32, shapes[1]))
        graph = direct(lambda b, x, other=other: [b.emit(REGISTRY["Add"](), x, other)], shapes[0])
        graph.parameters.append(other)
        assert not SplitAddends().run(graph)


def test_an_addend_that_is_repeated_for_all_queries_is_read_once() -> None:
    graph = direct(lambda b, x: [b.emit(REGISTRY["BroadcastTo"](SCORES), x)], (BATCH, 1, 1, KEYS))
    left_behind(SplitAddends(), graph)
    (node,) = attentions(graph)
    assert node.inputs[3] is graph.parameters[2]


def test_a_part_that_is_updated_before_it_is_read_stays_in_the_sum() -> None:
    other = Parameter("other", TensorType(FLOAT32, (BATCH, 1, 1, KEYS)), kind="parameter")

    def build(b: Builder, x: Value) -> list[Value]:
        total = b.emit(REGISTRY["Add"](), x, other)
        return [total, b.emit(REGISTRY["Assign"](), other, b.emit(REGISTRY["Neg"](), other))]

    graph = direct(build, (1, HEADS, QUERIES, KEYS))
    graph.parameters.append(other)
    assert not SplitAddends().run(graph)


# Sums in kernels ---------------------------------------------------------------------------------------------------


def gradients() -> tuple[Graph, list[Node]]:
    """Three gradients of addends of (batch, heads, queries, keys), of one that is read otherwise, too."""
    graph = direct(lambda b, x: [x])
    attention = graph.nodes[0]
    b = Builder(graph)
    q, k = graph.parameters[:2]
    slope = Parameter("slope", TensorType(FLOAT32, q.shape))
    graph.parameters.append(slope)
    statistics, out = (b.emit(TupleGetItem(i), attention) for i in (0, 3))
    op = REGISTRY["FlashAttentionScoreShiftGrad"](HEADS, input_layout="BNSD", optional=("real_shift",))
    inputs = [q, k, k, slope, graph.parameters[2], statistics, out]
    made = [b.emit(op, *(b.emit(REGISTRY["Neg"](), v) if v is slope and i else v for v in inputs)) for i in range(3)]
    graph.results = []
    return graph, made


@pytest.mark.parametrize("axis", [(0,), (0, 1), (1,), (-4,)])
@pytest.mark.parametrize("keep", [False, True])
def test_a_sum_of_gradients_is_made_of_sums(axis: tuple[int, ...], keep: bool) -> None:
    graph, made = gradients()
    b = Builder(graph)
    total = b.emit(REGISTRY["Cast"](FLOAT64), b.emit(REGISTRY["AddN"](), *made, graph.parameters[2]))
    graph.results = [b.emit(REGISTRY["ReduceSum"](keep, axis), total), made[2]]
    graph.returns_tuple = True
    left_behind(SumInKernels(), graph)
    sums = [node for node in attentions(graph) if node.op.attributes().get("result_shape")]
    assert len(sums) == 2  # the third one is read otherwise


def test_what_is_summed_over_queries_or_read_twice_stays() -> None:
    graph, made = gradients()
    b = Builder(graph)
    axes = ((0, 2), (0,), (0,))
    graph.results = [b.emit(REGISTRY["ReduceSum"](False, a), node) for a, node in zip(axes, made, strict=True)]
    graph.results.append(b.emit(REGISTRY["AddN"](), made[1], made[2]))
    assert not SumInKernels().run(graph)


def test_masks_are_no_second_addend() -> None:
    """A Bool mask that hides stays a mask."""
    m = Masked()
    graph = m.finish(m.filled(m.scores(), m.parameter("mask", (2, 1, 1, 5), BOOL), -1e9))
    FuseAttention().run(graph)
    assert not SplitAddends().run(graph)
