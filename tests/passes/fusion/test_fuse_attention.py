"""Attention that is written out becomes one operator: which forms, which not, and the same numbers on any number of
ranks.
On CPUs attention that is written out becomes one operator where it has many scores; else nothing changes.
"""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.analysis.integer_ranges import BOUNDS
from mspc.compiler.call import describe_call
from mspc.compiler.driver import DumpPoint, compile_traced, trace_call
from mspc.engine.capture import capture
from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64, TensorType
from mspc.mindspore_api.state import Session
from mspc.ops.math.arithmetic import Neg
from mspc.output.programs import config_of
from mspc.passes.fusion.fuse_attention import FuseAttention
from mspc.passes.fusion.fuse_large_attention import FuseLargeAttention
from tests.compiled_scripts import CompileOptions, verify_text
from tests.graphs import REGISTRY, Builder, Graph, NamedLayout, Node, Parameter, parse, print_graph
from tests.interpret import random_feeds, run_global, same
from tests.passes.fusion.written_attention import HEADS, Written, fused

FORMS: dict[str, Callable[[Written], Node]] = {
    "plain": lambda w: w.scores(),
    "key turned": lambda w: w.emit("BatchMatMul", w.query, w.emit("Transpose", w.key, perm=(0, 1, 3, 2))),
    "query scaled": lambda w: w.emit("BatchMatMul", w.emit("Mul", w.query, 0.5), w.key, transpose_b=True),
    "scaled": lambda w: w.emit("Mul", w.scores(), 0.5),
    "divided": lambda w: w.emit("Div", w.scores(), 2.0),
}


@pytest.mark.parametrize("form", FORMS)
def test_scores_in_other_words_have_a_scale(form: str) -> None:
    w = Written()
    node: Any = fused(w.finish(FORMS[form](w)))
    assert operators(w.graph) == {"FlashAttentionScore": 1, "TupleGetItem": 1}
    assert (node.op.scale_value, node.op.optional) == (1.0 if form in ("plain", "key turned") else 0.5, ())


def test_dropped_weights_are_those_of_the_operator() -> None:
    w = Written()
    node: Any = fused(dropped(w, w.scores()))
    assert (node.op.keep_prob, node.op.optional) == (0.5, ())


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


MESH = ((2, 4), ("data", "tensor"))
LAYOUT = NamedLayout(*MESH, (1, 0, -1, -1))


def with_result(graph: Graph, more: Node) -> Graph:
    graph.results.append(more)
    graph.returns_tuple = True
    return graph


def scores_are_read_twice(w: Written) -> Graph:
    graph = w.finish(w.scores())
    return with_result(graph, w.emit("ReduceSum", graph.nodes[0], axis=(0,)))


def weights_are_a_result(w: Written) -> Graph:
    graph = w.finish(w.scores())
    return with_result(graph, graph.nodes[-2])


def other_parts_recomputed(w: Written) -> Graph:
    graph = w.finish(w.scores())
    graph.nodes[1].attrs["recompute"] = "a"
    return graph


def out_strategy(w: Written) -> Graph:
    graph = w.finish(w.scores())
    graph.nodes[-1].in_strategy, graph.nodes[-1].out_strategy = (HEADS, HEADS), (HEADS,)
    return graph


def dropped(w: Written, scores: Node, name: str = "Dropout", mask_is_read: bool = False) -> Graph:
    """The product of weights that are dropped by the operator `name`."""
    weights = w.emit(name, w.emit("Softmax", scores), keep_prob=0.5)
    w.graph.results = [w.emit("BatchMatMul", w.emit("TupleGetItem", weights, index=0), w.value)]
    return with_result(w.graph, w.emit("TupleGetItem", weights, index=1)) if mask_is_read else w.graph


def over(w: Written, axis: Any) -> Graph:
    w.graph.results = [w.emit("BatchMatMul", w.emit("Softmax", w.scores(), axis=axis), w.value)]
    return w.graph


def scaled(w: Written, scores: Node, factor: Any) -> Graph:
    return w.finish(w.emit("Mul", scores, factor))


def filled(w: Written, number: float) -> Node:
    return w.emit("MaskedFill", w.scores(), w.parameter("mask", (6, 6), BOOL), number)


def value_for_all_batches(w: Written) -> Graph:
    w.graph.parameters.remove(w.value)
    w.value = w.parameter("w", (8, 6, 2))
    return w.finish(w.scores())


STAYING: dict[str, Callable[[Written], Graph]] = {
    "several strategies": lambda w: w.finish(
        w.emit("Mul", w.scores(((2, 4, 1, 1), (2, 4, 1, 1))), 0.5), softmax=((4, 2, 1, 1),)
    ),
    "several layouts": lambda w: w.finish(
        w.scores((LAYOUT, LAYOUT)), softmax=(NamedLayout(*MESH, (0, 1, -1, -1)),)
    ),
    "layouts and tuples": lambda w: w.finish(w.scores((LAYOUT, LAYOUT)), softmax=(HEADS,)),
    "a strategy of the result": out_strategy,
    "scores are read twice": scores_are_read_twice,
    "weights are a result": weights_are_a_result,
    "dropped by channel": lambda w: dropped(w, w.scores(), "Dropout2D"),
    "the mask of dropped weights is read": lambda w: dropped(w, w.scores(), mask_is_read=True),
    "rows without a key drop some of equal weights": lambda w: dropped(w, filled(w, -1e4)),
    "scaled behind the mask": lambda w: scaled(w, w.emit("Add", w.scores(), w.parameter("mask", (6, 6))), 0.5),
    "lightly filled": lambda w: w.finish(filled(w, -5.0)),
    "filled, then scaled": lambda w: scaled(w, filled(w, -1e4), 0.5),
    "softmax over queries": lambda w: over(w, 2),
    "softmax over heads": lambda w: over(w, (1,)),
    "scaled to nothing": lambda w: scaled(w, w.scores(), 0.0),
    "scaled without end": lambda w: scaled(w, w.scores(), math.inf),
    "scaled by a tensor": lambda w: scaled(w, w.scores(), w.parameter("scale", (1,))),
    "parts that are recomputed": other_parts_recomputed,
    "a value for all batches": value_for_all_batches,
}


@pytest.mark.filterwarnings("ignore:invalid value")  # of scores that are infinite
@pytest.mark.parametrize("written", STAYING)
def test_what_stays_as_it_is_written(written: str) -> None:
    assert fused(STAYING[written](Written())) is None


@pytest.mark.parametrize("axis", [-1, 3, (-1,), (3,)])
def test_a_softmax_over_the_keys_is_one_however_they_are_named(axis: Any) -> None:
    assert fused(over(Written(), axis)) is not None


@pytest.mark.parametrize("strategy", [
    ((2, 1, 2, 1), (2, 1, 1, 1)), (NamedLayout(*MESH, (0, -1, 1, -1)), NamedLayout(*MESH, (0, -1, -1, -1))),
])  # fmt: skip
def test_where_queries_are_sharded_ranks_exchange_slices_of_both_sequences(strategy: Any) -> None:
    w = Written()
    graph = w.finish(w.scores(strategy))
    node = fused(graph)
    assert node is not None
    (kept,) = graph.results
    assert isinstance(kept, Node)
    assert kept.op.name == "ShardingConstraint"
    stored = kept.in_strategy[0]
    for operand in node.inputs[:3]:
        assert isinstance(operand, Node)
        assert operand.in_strategy == (stored,)  # along the sequence
    assert stored.strategy[2] == 2  # in either way two ranks exchange as many bytes; heads need no ring
    assert all(entry.strategy == (stored.strategy[0], 2, 1, 1) for entry in node.in_strategy[:3])


def test_a_strategy_of_one_operator_is_that_of_all() -> None:
    w = Written()
    node = fused(w.finish(w.emit("Add", w.scores(), w.parameter("mask", (4, 1, 1, 6))), softmax=(HEADS,)))
    assert node is not None
    assert node.in_strategy == (HEADS, HEADS, HEADS, (2, 1, 1, 1))
    assert node.op.optional == ("real_shift",)  # type: ignore[attr-defined]  # of FlashAttentionScore


def test_layouts_go_to_the_operator() -> None:
    w = Written()
    mask = w.parameter("mask", (8, 1, 6))
    node = fused(w.finish(w.emit("Add", w.scores((LAYOUT, LAYOUT)), mask), softmax=(LAYOUT,)))
    assert node is not None
    assert node.in_strategy == (LAYOUT, LAYOUT, LAYOUT, NamedLayout(*MESH, (0, -1, -1)))


def test_one_head_of_key_and_value_serves_all_heads() -> None:
    w = Written()
    w.graph.parameters = [w.query]
    w.key, w.value = w.parameter("k", (4, 1, 6, 2)), w.parameter("v", (4, 1, 6, 2))
    node = fused(w.finish(w.scores(((2, 1, 1, 1), (2, 1, 1, 1)))))
    assert node is not None
    assert node.in_strategy == ((2, 1, 1, 1),) * 3


def test_mask_and_shift_together() -> None:
    w = Written()
    shift = w.parameter("shift", (8, 1, 6))
    shift.kind = "parameter"
    shifted = w.emit("Add", shift, w.scores())
    node = fused(w.finish(w.emit("Select", w.parameter("mask", (6, 6), BOOL), shifted, -1e9)))
    assert node is not None
    assert node.op.optional == ("real_shift", "attn_mask")  # type: ignore[attr-defined]  # of FlashAttentionScore
    assert node.inputs[-1].op.name == "LogicalNot"  # type: ignore[attr-defined]  # a Node


@pytest.mark.parametrize("turned", [False, True])
def test_halves_around_a_softmax_in_float32(turned: bool) -> None:
    """turned: what is mixed becomes Float32 before its heads are moved."""
    w = Written(FLOAT16)
    if turned:
        operands = [w.parameter(name, (4, 6, 8, 2), FLOAT16) for name in ("x", "y", "z")]
        w.query, w.key, w.value = (w.emit("Transpose", x, perm=(0, 2, 1, 3)) for x in operands)
    wide = w.emit("Softmax", w.emit("Cast", w.scores(), dst_type=FLOAT32))
    w.graph.results = [w.emit("BatchMatMul", w.emit("Cast", wide, dst_type=FLOAT16), w.value)]
    if turned:
        mixed = w.emit("Cast", w.graph.results[0], dst_type=FLOAT32)
        w.graph.results = [w.emit("Transpose", mixed, perm=(0, 2, 1, 3))]
    before = parse(print_graph(w.graph), REGISTRY).main
    assert FuseAttention().run(w.graph)
    assert operators(w.graph) == {"FlashAttentionScore": 1, "TupleGetItem": 1} | ({"Cast": 1} if turned else {})
    feeds = random_feeds(before)
    same([np.asarray(x, np.float32) for x in run_global(w.graph, feeds)],
         [np.asarray(x, np.float32) for x in run_global(before, feeds)], 2e-3)  # fmt: skip


def test_two_layers_that_hand_on_heads() -> None:
    """The result of the first is the query of the second, through one transpose that could belong to either."""
    w = Written()
    first = w.finish(w.scores()).results[0]
    turned = w.emit("Transpose", first, perm=(0, 2, 1, 3))
    key, value = (w.emit("Transpose", w.parameter(n, (4, 3, 6, 2)), perm=(0, 2, 1, 3)) for n in ("k2", "v2"))
    scores = w.emit("BatchMatMul", turned, key, transpose_b=True)
    mixed = w.emit("BatchMatMul", w.emit("Softmax", scores), value)
    w.graph.results = [w.emit("Transpose", mixed, perm=(0, 2, 1, 3))]
    before = parse(print_graph(w.graph), REGISTRY).main
    assert FuseAttention().run(w.graph)
    w.graph.verify()
    feeds = random_feeds(before)
    same(run_global(w.graph, feeds), run_global(before, feeds))


def test_a_transpose_that_two_layers_could_take_is_taken_once() -> None:
    """It brings the heads of the first layer's result back, and for the second it brings the heads in front."""
    w = Written()
    w.graph.parameters = []
    turned = [w.emit("Transpose", w.parameter(n, (4, 6, 8, 2)), perm=(0, 2, 1, 3)) for n in "qkv"]
    w.query, w.key, w.value = turned  # type: ignore[assignment]  # nodes in the place of parameters
    query = w.emit("Transpose", w.finish(w.scores()).results[0], perm=(0, 2, 1, 3))
    key, value = (w.emit("Transpose", w.parameter(n, (4, 3, 6, 2)), perm=(0, 2, 1, 3)) for n in ("k2", "v2"))
    weights = w.emit("Softmax", w.emit("BatchMatMul", query, key, transpose_b=True))
    w.graph.results = [w.emit("Transpose", w.emit("BatchMatMul", weights, value), perm=(0, 2, 1, 3))]
    assert fused(w.graph) is not None


@pytest.mark.parametrize(("batch", "becomes_one"), [(1, True), (4, False)])
def test_what_is_added_to_scores_without_heads_may_be_for_all_of_the_batch(batch: int, becomes_one: bool) -> None:
    """The operator takes the first of three dimensions for heads, of which there is one."""
    w = Written()
    w.graph.parameters = []
    w.query, w.key, w.value = (w.parameter(name, (4, 6, 8)) for name in "qkv")
    graph = w.finish(w.emit("Add", w.scores(), w.parameter("shift", (batch, 6, 6))))
    assert (fused(graph) is not None) is becomes_one


# Operands of attention that is written out, and what is between them and the products.


class Grouped(Written):
    """Two heads of key and value, each of which serves four of the query."""

    def __init__(self) -> None:
        super().__init__()
        for old in (self.key, self.value):
            self.graph.parameters.remove(old)
        self.key, self.value = (self.parameter(name, (4, 2, 6, 2)) for name in ("k2", "v2"))

    def interleaved(self, x: Any) -> Node:
        return self.emit("RepeatInterleaveInt", x, repeats=4, dim=-3)

    def expanded(self, x: Any) -> Node:
        apart = self.emit("ExpandDims", x, axis=2)
        repeated = self.emit("BroadcastTo", apart, shape=(4, 2, 4, 6, 2))
        return self.emit("Reshape", repeated, shape=(4, 8, 6, 2))

    def tiled(self, x: Any) -> Node:
        """Heads in another order: they are not shared by neighbours."""
        apart = self.emit("ExpandDims", x, axis=1)
        repeated = self.emit("BroadcastTo", apart, shape=(4, 4, 2, 6, 2))
        return self.emit("Reshape", repeated, shape=(4, 8, 6, 2))

    def attention(self, key: Any, value: Any, strategy: Any = None) -> Node | None:
        scores = self.emit("BatchMatMul", self.query, key, transpose_b=True, strategy=strategy)
        weights = self.emit("Softmax", scores)
        self.graph.results = [self.emit("BatchMatMul", weights, value)]
        return fused(self.graph)


@pytest.mark.parametrize("form", ["interleaved", "expanded"])
def test_heads_that_are_repeated_are_read_once(form: str) -> None:
    w = Grouped()
    repeated = getattr(w, form)
    node = w.attention(repeated(w.key), repeated(w.value))
    assert node is not None
    assert node.inputs[1:] == [w.key, w.value]
    assert not {"RepeatInterleaveInt", "BroadcastTo"} & {n.op.name for n in w.graph.nodes}


def test_heads_in_another_order_stay_repeated() -> None:
    w = Grouped()
    node = w.attention(w.tiled(w.key), w.tiled(w.value))
    assert node is not None
    assert [v.shape for v in node.inputs[1:]] == [(4, 8, 6, 2)] * 2


def test_heads_of_the_key_alone_stay_repeated() -> None:
    w = Grouped()
    w.graph.parameters.remove(w.value)
    w.value = w.parameter("v", (4, 8, 6, 2))
    node = w.attention(w.interleaved(w.key), w.value)
    assert node is not None
    assert [v.shape for v in node.inputs[1:]] == [(4, 8, 6, 2)] * 2


def test_slices_of_repeated_heads_stay_as_they_are_written() -> None:
    w = Grouped()
    heads = (1, 8, 1, 1)
    assert w.attention(w.interleaved(w.key), w.interleaved(w.value), (heads, heads)) is None


def test_one_cast_between_is_made_on_the_operand_and_two_are_not_taken_for_one() -> None:
    w = Written()
    wide = w.query.tensor_type.dtype
    once = w.emit("Cast", w.emit("Mul", w.query, 0.5), dst_type=FLOAT16)
    key = w.emit("Cast", w.emit("Cast", w.key, dst_type=BFLOAT16), dst_type=FLOAT16)
    scores = w.emit("BatchMatMul", once, key, transpose_b=True)
    weights = w.emit("Cast", w.emit("Softmax", w.emit("Cast", scores, dst_type=wide)), dst_type=FLOAT16)
    w.graph.results = [w.emit("BatchMatMul", weights, w.emit("Cast", w.value, dst_type=FLOAT16))]
    node = fused(w.graph)
    assert node is not None
    read: Any = node.inputs
    assert [v.inputs[0].tensor_type.dtype for v in read] == [wide, BFLOAT16, wide]
    assert node.op.attributes()["scale_value"] == 0.5


def test_values_may_be_transposed_in_the_last_product() -> None:
    w = Written()
    turned = w.emit("Transpose", w.value, perm=(0, 1, 3, 2))
    w.graph.results = [w.emit("BatchMatMul", w.emit("Softmax", w.scores()), turned, transpose_b=True)]
    node = fused(w.graph)
    assert node is not None
    assert node.inputs[2] is w.value


def test_a_factor_made_of_constants_is_the_scale() -> None:
    w = Written()
    root = w.emit("Sqrt", w.b.constant(4.0, w.query.tensor_type.dtype))
    node = fused(w.finish(w.emit("Div", w.scores(), root)))
    assert node is not None
    assert node.op.attributes()["scale_value"] == 0.5


NETWORK = """
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

LENGTH, DEVICE = int(sys.argv[1]), sys.argv[2]
ms.set_context(mode=ms.GRAPH_MODE, device_target=DEVICE)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.full((8, 8), 0.1, np.float32)), name="weight")
        self.mask = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))

    def construct(self, x):
        q = ops.matmul(x, self.weight)
        scores = ops.matmul(q, x.swapaxes(2, 3)) * 0.3 + self.mask
        return ops.matmul(ops.softmax(scores, -1), x).sum()


network = Network()
nn.TrainOneStepCell(network, nn.SGD(network.trainable_params()))(Tensor(np.ones((4, 4, LENGTH, 8), np.float32)))
"""


SHARDED = '''
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

KIND, HEADS = sys.argv[1], (2, 2, 1, 1)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(1).standard_normal
        self.wq, self.wk, self.wv = (Parameter(Tensor(draw((8, 8)).astype(np.float32)), name=n) for n in "qkv")
        self.product, self.split = ops.MatMul().shard(((2, 1), (1, 2))), ops.Transpose().shard(((2, 1, 2, 1),))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((HEADS, HEADS))
        self.softmax, self.drop = ops.Softmax().shard((HEADS,)), ops.Dropout(0.6, 3, 5).shard((HEADS,))
        self.mix = ops.BatchMatMul().shard((HEADS, HEADS))

    def construct(self, x):
        query, key, value = (self.split(ops.reshape(self.product(x, w), (4, 64, 4, 2)), (0, 2, 1, 3))
                             for w in (self.wq, self.wk, self.wv))
        weights = self.softmax(self.scores(query, key))
        if KIND == "dropped":
            weights = self.drop(weights)[0]
        return ops.reduce_mean(ops.square(self.mix(weights, value)))


network = Attention()
nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 1.0))(Tensor(np.ones([256, 8]), ms.float32))
'''


def stages(folder: Path, length: int, device: str = "CPU") -> dict[str, list[str]]:
    """The operators of every stage that is dumped, and what the constants of the first one are said to be."""
    script = folder / "network.py"
    script.write_text(NETWORK, encoding="utf-8")
    captured = capture(script, [str(length), device], Session.of_rank(0, 1))
    call = trace_call(captured.target, describe_call(captured.args, []), config_of(captured, 1))
    found: dict[str, list[str]] = {}

    def look(stage: DumpPoint) -> None:
        found[stage.name] = [node.op.name for node in stage.graph.nodes]
        found.setdefault("facts", [name for value in stage.graph.parameters for name in value.attrs])

    compile_traced(call, look)
    return found


def test_many_scores_make_one_operator(tmp_path: Path) -> None:
    found = stages(tmp_path, 64)
    assert "FlashAttentionScore" in found["fuse_large_attention"]
    assert "Softmax" not in found["fuse_large_attention"]
    assert "Add" not in found["fuse_large_attention"]  # the mask is a mode of the operator
    assert "FlashAttentionScoreGrad" in found["grad"]


def test_few_scores_stay_as_they_are_written(tmp_path: Path) -> None:
    found = stages(tmp_path, 32)
    assert "triangle" not in found["facts"]
    assert not any("attention" in name for name in found)
    assert all("Softmax" in names for name, names in found.items() if name != "facts")


@pytest.mark.parametrize("length", [32, 64])
def test_a_gpu_has_the_operator_whatever_the_size(tmp_path: Path, length: int) -> None:
    assert "FlashAttentionScore" in stages(tmp_path, length, "GPU")["fuse_attention"]


@pytest.mark.parametrize("kind", ["plain", "dropped"])
def test_operators_of_one_device_are_those_of_ranks(tmp_path: Path, kind: str) -> None:
    """They are compared one by one, so that all have to be fused or none."""
    verify_text(tmp_path, SHARDED, CompileOptions(ranks=4, script_arguments=(kind,)))


def test_bounds_of_what_a_loop_carries_end_here() -> None:
    """They do not hold for a slice, in a graph without attention as in one with it."""
    graph = Graph("body")
    carried = Parameter("count", TensorType(INT64, ()))
    carried.attrs[BOUNDS] = (0, 3)
    graph.parameters = [carried]
    graph.results = [Builder(graph).emit(Neg(), carried)]
    before = print_graph(graph)
    assert FuseLargeAttention().run(graph)
    assert print_graph(graph) != before
    assert not FuseLargeAttention().run(graph)
    assert BOUNDS not in carried.attrs
