"""Query, key and value of one product: which networks, the same numbers with and without, and what stays apart."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, amp, nn, ops
from mspc.compiler.pipeline import rank_passes, shared_passes
from mspc.ir.graph import Parameter as Input
from mspc.passes.base import find_pass, run_passes
from mspc.passes.fusion.join_products import JoinProducts
from mspc.passes.fusion.pack_attention import PackAttention
from mspc.runtime.memory_plan import plan_memory
from tests.compiled_scripts import Config, compile_call
from tests.graphs import FLOAT16, FLOAT32, REGISTRY, Graph, Node, TensorType, difference, parse, print_graph
from tests.interpret import random_feeds, run_global, same
from tests.operators import FlashAttentionScore, MatMul
from tests.passes.fusion.one_step import same_step
from tests.passes.fusion.written import WrittenGraph
from tests.shares import is_taken

BATCH, SEQUENCE, HEADS, DEPTH = 4, 6, 4, 4
WIDTH = HEADS * DEPTH


@dataclass(frozen=True)
class Form:
    """A way to write attention.

    layout: of the operator, or "written out". kind: in which products are computed. dense: products are Dense layers,
    with a bias or without. key_heads: of key and value. causal: a query looks at no later key. auto: mixed precision is
    chosen by operator, so that biases are added in Float32.
    """

    layout: str = "written out"
    kind: Any = ms.float32
    dense: bool = False
    bias: bool = False
    key_heads: int = HEADS
    causal: bool = False
    trained: bool = True
    auto: bool = False


class Attention(nn.Cell):
    """Attention of rows [batch * sequence, width], or of [batch, sequence, width] where products are Dense layers."""

    def __init__(self, form: Form, data: int, tensor: int, seed: int) -> None:
        super().__init__()
        draw = np.random.default_rng(seed).standard_normal
        columns, heads = ((data, 1), (1, tensor)), (data, tensor, 1, 1)
        widths = [WIDTH, *[form.key_heads * DEPTH] * 2]
        self.dense, self.layout, self.kind = form.dense, form.layout, form.kind
        self.key_heads = form.key_heads
        if form.dense:
            self.query, self.key, self.value = (nn.Dense(WIDTH, width, has_bias=form.bias) for width in widths)
            for layer in (self.query, self.key, self.value):
                layer.matmul.shard(((data, 1), (tensor, 1)))
                if form.bias:
                    layer.bias_add.shard(((data, tensor), (tensor,)))
                if not form.auto:
                    layer.to_float(form.kind)
        else:
            self.wq, self.wk, self.wv = (
                Parameter(Tensor(0.4 * draw((WIDTH, width)).astype(np.float32)), requires_grad=form.trained)
                for width in widths
            )
            self.query, self.key, self.value = (ops.MatMul().shard(columns) for _ in range(3))
        self.wo = Parameter(Tensor(0.4 * draw((WIDTH, WIDTH)).astype(np.float32)))
        self.out = ops.MatMul().shard(((data, tensor), (tensor, 1)))
        self.split = ops.Transpose().shard(((data, 1, tensor, 1),))
        self.merge = ops.Transpose().shard((heads,))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.add = ops.Add().shard(((data, 1), (data, 1)))
        if form.layout != "written out":
            by_layout = {
                "BNSD": heads, "BSND": (data, 1, tensor, 1), "BSH": (data, 1, tensor), "SBH": (1, data, tensor),
            }  # fmt: skip
            self.attend = ops.FlashAttentionScore(
                HEADS, scale_value=0.5, input_layout=form.layout, sparse_mode=2 if form.causal else 0
            ).shard((by_layout[form.layout],) * 3)
        self.softmax, self.weigh = ops.Softmax().shard((heads,)), ops.BatchMatMul().shard((heads, heads))

    def heads(self, x: Any, heads: int) -> Any:
        return self.split(ops.reshape(x, (BATCH, SEQUENCE, heads, DEPTH)), (0, 2, 1, 3))

    def mixed(self, query: Any, key: Any, value: Any) -> Any:
        if self.layout == "written out":
            query, key, value = self.heads(query, HEADS), self.heads(key, HEADS), self.heads(value, HEADS)
            weights = self.softmax(self.scores(query, key) * 0.5)
            return self.merge(self.weigh(weights, value), (0, 2, 1, 3))
        if self.layout == "BNSD":
            query, key, value = self.heads(query, HEADS), self.heads(key, self.key_heads), self.heads(
                value, self.key_heads)  # fmt: skip
        elif self.layout == "BSND":
            query = ops.reshape(query, (BATCH, SEQUENCE, HEADS, DEPTH))
            key = ops.reshape(key, (BATCH, SEQUENCE, self.key_heads, DEPTH))
            value = ops.reshape(value, (BATCH, SEQUENCE, self.key_heads, DEPTH))
        elif self.layout == "BSH":
            query = ops.reshape(query, (BATCH, SEQUENCE, WIDTH))
            key = ops.reshape(key, (BATCH, SEQUENCE, self.key_heads * DEPTH))
            value = ops.reshape(value, (BATCH, SEQUENCE, self.key_heads * DEPTH))
        else:
            query = ops.reshape(query, (SEQUENCE, BATCH, WIDTH))
            key = ops.reshape(key, (SEQUENCE, BATCH, self.key_heads * DEPTH))
            value = ops.reshape(value, (SEQUENCE, BATCH, self.key_heads * DEPTH))
        out = self.attend(query, key, value, None, None, None, None, None, None, None)[3]
        return self.merge(out, (0, 2, 1, 3)) if self.layout == "BNSD" else out

    def construct(self, x: Any) -> Any:
        if self.dense:
            y = ops.reshape(x, (BATCH, SEQUENCE, WIDTH))
            query, key, value = self.query(y), self.key(y), self.value(y)
        else:
            y = ops.cast(x, self.kind)
            query = self.query(y, ops.cast(self.wq, self.kind))
            key = self.key(y, ops.cast(self.wk, self.kind))
            value = self.value(y, ops.cast(self.wv, self.kind))
        mixed = ops.cast(ops.reshape(self.mixed(query, key, value), (BATCH * SEQUENCE, WIDTH)), ms.float32)
        return self.add(self.out(mixed, self.wo), x)


class Layers(nn.Cell):
    """Two layers: the first needs no gradient of its operand."""

    def __init__(self, form: Form, data: int, tensor: int) -> None:
        super().__init__()
        self.first, self.second = Attention(form, data, tensor, 0), Attention(form, data, tensor, 1)

    def construct(self, x: Any) -> Any:
        return self.second(self.first(x))


FORMS = {
    "written out, bfloat16": Form(kind=ms.bfloat16),
    "Dense with a bias": Form(dense=True, bias=True),
    "Dense with a bias in Float32": Form(dense=True, bias=True, kind=ms.bfloat16, auto=True),
    "operator, fewer heads of key": Form("BSND", key_heads=2),
    "hidden, Dense with a bias": Form("BSH", dense=True, bias=True, causal=True),
    "sequence first": Form("SBH", causal=True),
    "heads first": Form("BNSD", causal=True, kind=ms.bfloat16),
    "heads first, Dense with a bias": Form("BNSD", dense=True, bias=True, key_heads=2),
    "weights that are not trained": Form(trained=False),
}
CUTS = [(1, 1), (1, 2), (2, 2)]
REPLICATED = ("sequence first",)
"""Forms whose rows are not sharded as their batch is."""


def compiled(form: Form, data: int, tensor: int, train: bool = True, recompute: bool = False, **settings: Any) -> Any:
    ms.set_seed(1)
    layers = Layers(form, data, tensor)
    if recompute:
        layers.first.recompute()
        layers.second.recompute()
    if form.auto:
        layers = amp.auto_mixed_precision(layers, "auto", form.kind)
    network = nn.WithLossCell(layers, nn.MSELoss())
    target: Any = network
    if train:
        target = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 1.0))
        target.set_train()
    draw = np.random.default_rng(3).standard_normal
    args = [Tensor(draw((BATCH * SEQUENCE, WIDTH)).astype(np.float32)) for _ in range(2)]
    if not settings:
        mode = "semi_auto_parallel" if data * tensor > 1 else "stand_alone"
        settings = {"mode": mode, "dataset_strategy": "full_batch"}
    config = Config(ranks=data * tensor, device="GPU", **settings)
    return compile_call(target, args, config), [arg.asnumpy() for arg in args]


def rank_graphs(found: Any, packed: bool) -> list[Graph]:
    names = rank_passes("GPU" if packed else "CPU")
    graphs: list[Graph] = []
    for rank in range(found.config.ranks):
        passes = [find_pass(name, {"rank": rank} if name == "slice_to_rank" else {}) for name in names]
        graph = run_passes(found.graph, passes[:2])
        graph.verify()
        assert difference(parse(print_graph(graph), REGISTRY).main, graph) == ""
        graphs.append(run_passes(graph, passes[2:]))
    return graphs


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op.name.removeprefix("Fused") for node in graph.nodes)


@pytest.mark.parametrize(("place", "name"), list(enumerate(FORMS)), ids=FORMS)
def test_training_gives_the_same_numbers(place: int, name: str) -> None:
    """Every form, by turns on one rank or on some."""
    form = FORMS[name]
    cuts = CUTS[:1] if name in REPLICATED else [cut for turn, cut in enumerate(CUTS) if is_taken(place + turn, 2)]
    for data, tensor in cuts:
        found, feeds = compiled(form, data, tensor)
        packed, apart = rank_graphs(found, True), rank_graphs(found, False)
        for op in (node.op for node in packed[0].nodes if "FlashAttention" in node.op.name):
            assert op.attributes()["packed"] == form.key_heads // tensor
        # Two less than 21 forward in both layers, two for the operand of the second, and two for the weights of both.
        # Other passes may make one of the products of a sum of those that stay apart.
        assert operators(packed[0])["MatMul"] == (21 - 10 if form.trained else 14 - 6)
        assert operators(apart[0])["MatMul"] > operators(packed[0])["MatMul"] + 3
        assert operators(packed[0])["AllReduce"] == operators(apart[0])["AllReduce"]
        assert operators(packed[0])["Transpose"] == 0
        same_step(found, feeds, form.kind, packed, apart)


@pytest.mark.parametrize("name", ["written out, bfloat16", "Dense with a bias", "heads first"])
def test_forward_alone(name: str) -> None:
    found, feeds = compiled(FORMS[name], 1, 2, train=False)
    packed, apart = rank_graphs(found, True), rank_graphs(found, False)
    assert operators(packed[0])["MatMul"] == 4
    assert operators(apart[0])["MatMul"] == 8
    same_step(found, feeds, FORMS[name].kind, packed, apart)


def test_recomputed_products_are_packed_too() -> None:
    form = FORMS["written out, bfloat16"]
    found, feeds = compiled(form, 1, 1, recompute=True)
    packed, apart = rank_graphs(found, True), rank_graphs(found, False)
    scores = [node for node in packed[0].nodes if node.op.name == "FlashAttentionScore"]
    assert [len(node.inputs) for node in scores] == [1] * 4
    same_step(found, feeds, form.kind, packed, apart)


OTHERS: dict[str, dict[str, Any]] = {
    "data parallel": {"mode": "data_parallel"},
    "parallel optimizer": {
        "mode": "semi_auto_parallel", "dataset_strategy": "full_batch", "parallel_optimizer": True,
        "parallel_optimizer_threshold": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_ranks_exchange_what_they_did(name: str) -> None:
    form = FORMS["Dense with a bias"]
    found, feeds = compiled(form, 2, 1, **OTHERS[name])
    packed, apart = rank_graphs(found, True), rank_graphs(found, False)
    for kind in ("AllReduce", "AllGather", "ReduceScatter"):
        assert operators(packed[0])[kind] == operators(apart[0])[kind]
    assert (operators(apart[0]) - operators(packed[0]))["MatMul"] == 10
    same_step(found, feeds, form.kind, packed, apart)


def test_no_more_memory_where_weights_are_cast() -> None:
    found, _ = compiled(FORMS["written out, bfloat16"], 1, 2)
    packed, apart = (plan_memory(rank_graphs(found, one)[0]).peak for one in (True, False))
    assert packed <= apart * 1.01


def test_it_runs_for_gpus_alone() -> None:
    assert "pack_attention" in rank_passes("GPU")
    assert "pack_attention" not in {*rank_passes(), *shared_passes("semi_auto_parallel", "GPU")}


# Small graphs ------------------------------------------------------------------------------------------------


class Written(WrittenGraph):
    """x [8, 8] -> query, key, value by products -> attention [2, 4, 2, 4], operator by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.parameter("x", (8, 8))
        self.weights = [self.parameter(name, (8, 8)) for name in ("wq", "wk", "wv")]

    def heads(self, product: Any) -> Node:
        return self.emit("Reshape", product, shape=(2, 4, 2, 4))

    def attention(self, query: Any, key: Any, value: Any) -> Node:
        return self.emit("FlashAttentionScore", query, key, value, head_num=2, input_layout="BSND")

    def finish(self, query: Any, key: Any, value: Any, *others: Any) -> Graph:
        out = self.emit("TupleGetItem", self.attention(query, key, value), index=3)
        self.graph.results = [out, *others]
        self.graph.returns_tuple = bool(others)
        return self.graph

    def products(self, **attributes: Any) -> list[Node]:
        return [self.emit("MatMul", self.x, w, **attributes) for w in self.weights]


def query_of_another_operand(w: Written) -> Graph:
    _, key, value = map(w.heads, w.products())
    return w.finish(w.heads(w.emit("MatMul", w.parameter("z", (8, 8)), w.weights[0])), key, value)


def a_second_reader(w: Written) -> Graph:
    query, key, value = w.products()
    return w.finish(*map(w.heads, (query, key, value)), w.emit("ReduceSum", key, axis=(0,)))


def a_result(w: Written) -> Graph:
    query, key, value = map(w.heads, w.products())
    return w.finish(query, key, value, value)


def one_is_cast(w: Written) -> Graph:
    """The product of value in another type."""
    query, key, _ = map(w.heads, w.products())
    halves = w.emit("MatMul", *(w.emit("Cast", v, dst_type=FLOAT16) for v in (w.x, w.weights[2])))
    return w.finish(query, key, w.emit("Cast", w.heads(halves), dst_type=FLOAT32))


def one_is_turned(w: Written) -> Graph:
    query, key, _ = map(w.heads, w.products())
    return w.finish(query, key, w.heads(w.emit("MatMul", w.x, w.weights[2], transpose_b=True)))


def operands_are_turned(w: Written) -> Graph:
    return w.finish(*map(w.heads, w.products(transpose_a=True)))


def one_has_a_bias(w: Written) -> Graph:
    query, key, value = w.products()
    return w.finish(*map(w.heads, (query, w.emit("BiasAdd", key, w.parameter("b", (8,))), value)))


def a_bias_of_rows(w: Written) -> Graph:
    b = w.parameter("b", (8, 1))
    return w.finish(*(w.heads(w.emit("Add", product, b)) for product in w.products()))


def one_product_for_two(w: Written) -> Graph:
    query, key, _ = w.products()
    heads = w.heads(key)
    return w.finish(w.heads(query), heads, heads)


def scaled_in_between(w: Written) -> Graph:
    query, key, value = w.products()
    return w.finish(w.heads(w.emit("Mul", query, query)), w.heads(key), w.heads(value))


def keys_from_elsewhere(w: Written) -> Graph:
    key, value = (w.parameter(name, (2, 4, 2, 4)) for name in ("k", "v"))
    return w.finish(w.heads(w.products()[0]), key, value)


def weights_change_in_between(w: Written) -> Graph:
    changed = Input("changed", TensorType(FLOAT32, (8, 8)), kind="parameter")
    w.graph.parameters.append(changed)
    query = w.emit("MatMul", w.x, changed)
    w.emit("Assign", changed, w.x)
    return w.finish(*map(w.heads, (query, *w.products()[1:])))


APART: list[Callable[[Written], Graph]] = [
    query_of_another_operand, one_is_cast, one_is_turned, operands_are_turned, one_has_a_bias, a_bias_of_rows,
    one_product_for_two, scaled_in_between, keys_from_elsewhere, weights_change_in_between,
]  # fmt: skip
PACKED: list[Callable[[Written], Graph]] = [a_second_reader, a_result]


def is_packed(graph: Graph) -> bool:
    """Whether the passes give the attention one operand."""
    JoinProducts().run(graph)
    changed = PackAttention().run(graph)
    graph.verify()
    assert changed == any(isinstance(n.op, FlashAttentionScore) and n.op.packed for n in graph.nodes)
    return changed


def check_small(graph: Graph, packed: bool) -> None:
    """Whether the graph is packed; the numbers stay."""
    before = parse(print_graph(graph), REGISTRY).main
    assert is_packed(graph) is packed
    feeds = random_feeds(before)
    same(run_global(graph, feeds), run_global(before, feeds))


@pytest.mark.parametrize("make", [*APART, *PACKED], ids=lambda make: make.__name__)
def test_what_is_packed(make: Callable[[Written], Graph]) -> None:
    """Others may read parts of what an attention reads."""
    check_small(make(Written()), make in PACKED)


def with_gradients(w: Written, of: Sequence[Any], changed: bool = False) -> Graph:
    """Attention with the gradients of x and of the weights; for the weights the rows `of`. `changed`: the weight of
    query becomes another before what reads the gradients."""
    products = w.products()
    query, key, value = map(w.heads, products)
    attention = w.attention(query, key, value)
    out = w.emit("TupleGetItem", attention, index=3)
    statistics = w.emit("TupleGetItem", attention, index=0)
    gradient = w.emit(
        "FlashAttentionScoreGrad", query, key, value, w.parameter("dy", (2, 4, 2, 4)), statistics, out, head_num=2,
        input_layout="BSND",
    )  # fmt: skip
    if changed:
        w.emit("Assign", w.weights[0], w.x)
    rows = [w.emit("Reshape", w.emit("TupleGetItem", gradient, index=i), shape=(8, 8)) for i in range(3)]
    terms = [w.emit("MatMul", dy, weight, transpose_b=True) for dy, weight in zip(rows, w.weights, strict=True)]
    made = [w.emit("MatMul", x, dy, transpose_a=True) for x, dy in zip(of, rows, strict=True)]
    w.graph.results, w.graph.returns_tuple = [out, w.emit("AddN", *terms), *made], True
    return w.graph


def test_gradients_of_a_small_graph_are_packed() -> None:
    w = Written()
    check_small(with_gradients(w, [w.x] * 3), True)


def test_products_of_gradients_by_something_else_read_them_apart() -> None:
    w = Written()
    graph = with_gradients(w, [w.parameter("z", (8, 8))] * 3)
    check_small(graph, False)
    assert sum(isinstance(node.op, MatMul) and node.op.transpose_a for node in graph.nodes) == 3


def test_weights_that_change_before_gradients_are_multiplied_stay_apart() -> None:
    w = Written()
    w.weights[0].kind = "parameter"
    check_small(with_gradients(w, [w.x] * 3, changed=True), False)


def test_a_small_graph_is_packed() -> None:
    w = Written()
    graph = w.finish(*map(w.heads, w.products()))
    check_small(graph, True)
    assert [n.op.name for n in graph.nodes] == ["Concat", "MatMul", "Reshape", "FlashAttentionScore", "TupleGetItem"]
    assert not JoinProducts().run(graph)
    assert not PackAttention().run(graph)


PART_BATCH, LENGTH, PART_HEADS, PART_DEPTH = 2, 5, 4, 4
PART_WIDTH = PART_HEADS * PART_DEPTH
Parts = tuple[Any, Any, Any]


def heads_first(x: Any, heads: int = PART_HEADS) -> Any:
    return ops.transpose(ops.reshape(x, (PART_BATCH, LENGTH, heads, PART_DEPTH)), (0, 2, 1, 3))


def split(x: Any) -> Parts:
    query, key, value = ops.split(x, PART_WIDTH, axis=2)
    return heads_first(query), heads_first(key), heads_first(value)


def in_halves(x: Any) -> Parts:
    query, key, value = ops.split(x, PART_WIDTH, axis=-1)
    return tuple(heads_first(ops.cast(part, ms.float16)) for part in (query, key, value))  # type: ignore[return-value]


def unstacked(x: Any) -> Parts:
    parts = ops.transpose(ops.reshape(x, (PART_BATCH, LENGTH, 3, PART_HEADS, PART_DEPTH)), (2, 0, 3, 1, 4))
    return ops.unstack(parts, axis=0)


def taken(x: Any) -> Parts:
    parts = ops.transpose(ops.reshape(x, (PART_BATCH, LENGTH, 3, PART_HEADS, PART_DEPTH)), (2, 0, 3, 1, 4))
    return parts[0], parts[1], parts[2]


def sliced(x: Any) -> Parts:
    parts = ops.transpose(ops.reshape(x, (PART_BATCH, LENGTH, 3 * PART_HEADS, PART_DEPTH)), (0, 2, 1, 3))
    return parts[:, :PART_HEADS], parts[:, PART_HEADS : 2 * PART_HEADS], parts[:, 2 * PART_HEADS :]


def chunked(x: Any) -> Parts:
    query, key, value = ops.chunk(x, 3, axis=2)
    return heads_first(query), heads_first(key), heads_first(value)


def value_first(x: Any) -> Parts:
    value, key, query = split(x)
    return query, key, value


def head_by_head(x: Any) -> Parts:
    """The parts of one head lie one behind the other."""
    parts = ops.transpose(ops.reshape(x, (PART_BATCH, LENGTH, PART_HEADS, 3, PART_DEPTH)), (3, 0, 2, 1, 4))
    return ops.unstack(parts, axis=0)


def scaled(x: Any) -> Parts:
    query, key, value = split(x)
    return query * 2, key, value


def of_key_twice(x: Any) -> Parts:
    query, key, _ = split(x)
    return query, key, key


def turned(x: Any) -> Parts:
    query, key, value = split(x)
    return query, key, ops.flip(value, (2,))


class PartAttention(nn.Cell):
    def __init__(self, parts: Callable[[Any], Parts], read_again: bool = False, shifted: bool = False) -> None:
        super().__init__()
        draw = np.random.default_rng(1).standard_normal
        self.weight = Parameter(Tensor(0.3 * draw((PART_WIDTH, 3 * PART_WIDTH)).astype(np.float32)))
        self.parts, self.read_again = parts, read_again
        self.shift = (
            Parameter(Tensor(draw((PART_BATCH, PART_HEADS, LENGTH, LENGTH)).astype(np.float32))) if shifted else None
        )
        self.attend = ops.FlashAttentionScore(PART_HEADS, scale_value=0.5, input_layout="BNSD", sparse_mode=2)

    def construct(self, x: Any) -> Any:
        query, key, value = self.parts(ops.tanh(ops.matmul(x, self.weight)))
        out = self.attend(query, key, value, self.shift, None, None, None, None, None, None)[3]
        out = ops.cast(ops.transpose(out, (0, 2, 1, 3)), ms.float32)
        return out.sum() + (ops.square(ops.cast(key, ms.float32)).sum() if self.read_again else 0)


def graphs(network: nn.Cell, trained: bool = True) -> tuple[Graph, Graph]:
    """The program of a rank of a GPU, with attention packed and apart."""
    target: Any = network
    if trained:
        target = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 1.0))
        target.set_train()
    x = Tensor(np.random.default_rng(2).standard_normal((PART_BATCH, LENGTH, PART_WIDTH)).astype(np.float32))
    graph = compile_call(target, [x], Config(device="GPU", mode="stand_alone")).graph
    made: list[Graph] = []
    for names in (rank_passes("GPU"), rank_passes()):
        passes = [find_pass(name, {"rank": 0} if name == "slice_to_rank" else {}) for name in names]
        made.append(run_passes(graph, passes))
        made[-1].verify()
    return made[0], made[1]


def operands(graph: Graph) -> list[int]:
    """The number of operands that hold query, key and value, of every attention and gradient of one."""
    found = [node for node in graph.nodes if node.op.name.startswith("FlashAttentionScore")]
    return [1 if node.op.attributes().get("packed") else 3 for node in found]


def moves(graph: Graph) -> list[str]:
    """The operators that still move elements."""
    names = [node.op.name for node in graph.nodes] + [str(node.op.attributes().get("body", "")) for node in graph.nodes]
    text = " ".join(names)
    return [name for name in ("Split", "Unstack", "StridedSlice", "Stack", "Concat", "Transpose") if name in text]


TOGETHER = [split, unstacked, taken, sliced, chunked, in_halves]
PART_APART = [value_first, head_by_head, scaled, of_key_twice, turned]


def compared(packed: Graph, apart: Graph, halves: bool) -> None:
    feeds = random_feeds(apart)
    same(run_global(packed, feeds), run_global(apart, feeds), 2e-2 if halves else 1e-5)


@pytest.mark.parametrize("parts", TOGETHER, ids=lambda parts: parts.__name__)
@pytest.mark.parametrize("trained", [True, False])
def test_parts_of_one_tensor_are_read_where_they_are(parts: Callable[[Any], Parts], trained: bool) -> None:
    packed, apart = graphs(PartAttention(parts), trained)
    assert operands(packed) == [1] * (1 + trained)
    assert moves(packed) == []
    compared(packed, apart, parts is in_halves)


@pytest.mark.parametrize("parts", PART_APART, ids=lambda parts: parts.__name__)
def test_what_lies_otherwise_stays_apart(parts: Callable[[Any], Parts]) -> None:
    packed, apart = graphs(PartAttention(parts))
    assert operands(packed) == [3, 3]
    compared(packed, apart, False)


@pytest.mark.parametrize("parts", [split, unstacked], ids=lambda parts: parts.__name__)
def test_the_gradient_of_an_addend_reads_the_parts_too(parts: Callable[[Any], Parts]) -> None:
    packed, apart = graphs(PartAttention(parts, shifted=True))
    assert [node.op.name for node in packed.nodes].count("FlashAttentionScoreShiftGrad") == 1
    assert operands(packed) == [1, 1, 1]
    compared(packed, apart, False)


def test_gradients_that_something_is_added_to_stay_apart() -> None:
    packed, apart = graphs(PartAttention(split, read_again=True))
    assert operands(packed) == [3, 3]
    compared(packed, apart, False)


def test_parts_may_have_other_readers_where_there_are_no_gradients() -> None:
    packed, apart = graphs(PartAttention(split, read_again=True), trained=False)
    assert operands(packed) == [1]
    compared(packed, apart, False)
