"""Products of one operand as one: which networks, the same numbers with and without, and what is weighed."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mspc as ms
from mspc.compiler.pipeline import rank_passes
from mspc.ops.tensor.reshape import Cast, ReduceSum, Reshape
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion import joined_products
from mspc.passes.fusion.join_products import JoinProducts
from mspc.passes.fusion.join_slices import JoinSlices
from mspc.passes.fusion.products_of_rows import ProductsOfRows
from mspc.passes.fusion.share_sums import ShareSums
from mspc.passes.fusion.simplify_products import SimplifyProducts
from tests.graphs import BFLOAT16, FLOAT32, FLOAT64, Builder, DType, Graph, Parameter, TensorType, Value, print_graph
from tests.interpret import left_behind, random_feeds, run_global
from tests.operators import Add, AddN, Assign, BatchMatMul, FusedMatMul, MatMul, StridedSliceGrad, Transpose
from tests.passes.fusion.one_step import same_step
from tests.passes.fusion.test_fuse_elementwise import fused, names, new_graph, op, run
from tests.passes.fusion.written import WrittenGraph, graph_of
from tests.passes.fusion.written_products import NETWORKS, compiled, products, rank_graphs
from tests.shares import crossed, share_of


@pytest.mark.parametrize(("name", "kind"), crossed(NETWORKS, [ms.float32, ms.bfloat16]))
def test_training_gives_the_same_numbers(name: str, kind: Any) -> None:
    found, feeds = compiled(name, kind)
    joined, apart = rank_graphs(found, True), rank_graphs(found, False)
    assert products(apart[0]) - products(joined[0]) == NETWORKS[name][1]
    same_step(found, feeds, kind, joined, apart)


def test_an_operand_without_gradient() -> None:
    """The products for the weights alone are joined, whatever their order."""
    p = Products(16, 16, 16, 32, 24, 24, dtype=FLOAT32)
    slopes = [p.emit("Tanh", p.parameter(f"g{i}", y.shape)) for i, y in enumerate(p.made)]
    weights = [p.emit("MatMul", p.x, slopes[i], transpose_a=True) for i in (3, 0, 2, 1)]
    graph = p.finish(*(p.emit("Tanh", y) for y in p.made), *weights)
    left_behind(JoinProducts(), graph)
    assert products(graph) == 2


@pytest.mark.parametrize("start", [1000, 6000])
def test_what_is_joined_in_part_gives_the_same_numbers(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a product more costs less, some products are joined forward, some backward, and some not at all."""
    monkeypatch.setattr(joined_products, "START", start)
    found, feeds = compiled("all", ms.float32)
    joined, apart = rank_graphs(found, True), rank_graphs(found, False)
    assert 0 < products(apart[0]) - products(joined[0]) < NETWORKS["all"][1]
    same_step(found, feeds, ms.float32, joined, apart)


def test_what_is_computed_again_is_joined_too() -> None:
    found, feeds = compiled("all", ms.float32, recompute=True)
    joined, apart = rank_graphs(found, True), rank_graphs(found, False)
    assert products(apart[0]) - products(joined[0]) == 18 + 6
    same_step(found, feeds, ms.float32, joined, apart)


def test_ranks_exchange_what_they_did() -> None:
    found, feeds = compiled("all", ms.float32, ranks=2, mode="data_parallel")
    joined, apart = rank_graphs(found, True), rank_graphs(found, False)
    assert products(apart[0]) - products(joined[0]) == NETWORKS["all"][1]
    reductions = [[n for n in g.nodes if n.op.name == "AllReduce"] for g in (joined[0], apart[0])]
    assert len(reductions[0]) == len(reductions[1]) > 0
    assert [n.type.nbytes for n in reductions[0]] == [n.type.nbytes for n in reductions[1]]
    same_step(found, feeds, ms.float32, joined, apart)


def test_it_is_for_gpus_and_gives_the_same_text_every_time() -> None:
    assert "join_products" in rank_passes("GPU")
    assert "join_products" not in rank_passes()
    texts = {print_graph(rank_graphs(compiled("all", ms.float32)[0], True)[0]) for _ in range(2)}
    assert len(texts) == 1


# Weights -----------------------------------------------------------------------------------------------------


class Products(WrittenGraph):
    """x [rows, width] by weights that an update changes in the end, operator by operator."""

    def __init__(self, rows: int, width: int, *columns: int, dtype: DType = BFLOAT16) -> None:
        super().__init__(dtype)
        self.x = self.parameter("x", (rows, width))
        self.weights = [self.parameter(f"w{i}", (width, n), FLOAT32, "parameter") for i, n in enumerate(columns)]
        self.cast = [self.emit("Cast", w, dst_type=dtype) if dtype != FLOAT32 else w for w in self.weights]
        self.made: list[Value] = [self.emit("MatMul", self.x, w) for w in self.cast]

    def backward(self, *slopes: Value) -> list[Value]:
        """The gradients of x and of the weights."""
        terms = [self.emit("MatMul", dy, w, transpose_b=True) for dy, w in zip(slopes, self.cast, strict=True)]
        weights = [self.emit("MatMul", self.x, dy, transpose_a=True) for dy in slopes]
        return [self.emit("AddN", *terms), *weights]

    def finish(self, *results: Value) -> Graph:
        for w in self.weights:
            self.emit("AssignAdd", w, w)
        self.graph.results, self.graph.returns_tuple = list(results), len(results) > 1
        return self.graph

    def joined(self, *results: Value) -> int:
        """How many products there are less."""
        graph = self.finish(*results)
        before = products(graph)
        assert JoinProducts().run(graph) == (products(graph) < before)
        graph.verify()
        return before - products(graph)


def test_small_products_of_many_rows_are_joined() -> None:
    p = Products(8192, 1024, 1024, 256, 256)
    assert p.joined(*(p.emit("Tanh", y) for y in p.made)) == 2


def test_gradients_that_kernels_make_apart_are_joined() -> None:
    p = Products(8192, 1024, 1024, 256, 256)
    slopes = [p.emit("Tanh", p.parameter(f"g{i}", y.shape)) for i, y in enumerate(p.made)]
    assert p.joined(*(p.emit("Tanh", y) for y in p.made), *p.backward(*slopes)) == 6


def gated(rows: int, columns: int) -> int:
    p = Products(rows, 1024, columns, columns)
    gate, value = p.made
    opened = p.emit("SiLU", gate)
    g = p.parameter("g", (rows, columns))
    slopes = p.emit("SiLUGrad", p.emit("Mul", g, value), gate), p.emit("Mul", g, opened)
    return p.joined(p.emit("Mul", opened, value), *p.backward(*slopes))


def test_a_gate_is_joined_where_a_product_more_costs_more_than_its_operands_read_again() -> None:
    assert gated(8192, 2816) == 0
    assert gated(512, 2816) == 3


def attended(rows: int, heads: int) -> int:
    p = Products(rows, 1024, heads * 64, heads * 64)
    key, value = (p.emit("Reshape", y, shape=(1, rows, heads, 64)) for y in p.made)
    query = p.parameter("q", (1, 64, heads, 64))
    out = p.emit("FlashAttentionScore", query, key, value, head_num=heads, input_layout="BSND")
    return p.joined(p.emit("TupleGetItem", out, index=3))


def test_gradients_of_large_weights_are_not_copied() -> None:
    for columns, fewer in ((256, 1), (4096, 0)):
        p = Products(256, 4096, columns, columns)
        slopes = [p.emit("Tanh", p.parameter(f"g{i}", y.shape)) for i, y in enumerate(p.made)]
        graph = p.finish(*(p.emit("Tanh", y) for y in p.made), *p.backward(*slopes))
        before = sum(node.op.name == "MatMul" and node.op.transpose_a for node in graph.nodes)
        JoinProducts().run(graph)
        after = sum(node.op.name == "MatMul" and node.op.transpose_a for node in graph.nodes)
        assert before - after == fewer


def test_halves_of_weights_are_not_made_twice() -> None:
    """Forward and the products for x read the weights joined, or both one by one."""
    for summed, fewer in ((True, 2), (False, 0)):
        p = Products(256, 2048, 1024, 1024)
        slopes = [p.emit("Tanh", p.parameter(f"g{i}", y.shape)) for i, y in enumerate(p.made)]
        terms = [p.emit("MatMul", dy, w, transpose_b=True) for dy, w in zip(slopes, p.cast, strict=True)]
        back = [p.emit("AddN", *terms)] if summed else [p.emit("Tanh", term) for term in terms]
        assert p.joined(*(p.emit("Tanh", y) for y in p.made), *back) == fewer


def test_what_an_attention_would_have_to_copy_stays_apart() -> None:
    assert attended(16384, 16) == 0
    assert attended(256, 4) == 1


def test_a_result_stays_apart_and_the_others_are_joined() -> None:
    p = Products(16384, 256, 1024, 256, 256)
    assert p.joined(p.made[0], *(p.emit("Tanh", y) for y in p.made[1:])) == 1
    p = Products(16384, 256, 1024, 1024)
    assert p.joined(*p.made) == 0


def test_parts_that_do_not_begin_at_packs_are_copies() -> None:
    for columns, fewer in ((1024, 1), (1023, 0)):
        p = Products(16384, 1024, columns, 1024)
        assert p.joined(*(p.emit("Tanh", y) for y in p.made)) == fewer


def test_gelu_stays_a_part_of_its_product() -> None:
    for rows, fewer in ((16384, 0), (256, 1)):
        p = Products(rows, 1024, 1024, 1024)
        assert p.joined(*(p.emit("GeLU", y) for y in p.made)) == fewer


def test_one_weight_twice_and_weights_that_change_in_between_stay() -> None:
    p = Products(64, 64, 64)
    again = p.emit("MatMul", p.x, p.cast[0])
    assert p.joined(p.emit("Tanh", p.made[0]), p.emit("Tanh", again)) == 0
    p = Products(64, 64, 64, dtype=FLOAT32)
    other = p.parameter("other", (64, 64), FLOAT32, "parameter")
    p.emit("AssignAdd", other, other)
    assert p.joined(p.emit("Tanh", p.made[0]), p.emit("Tanh", p.emit("MatMul", p.x, other))) == 0


def test_products_far_from_each_other_stay() -> None:
    for between, fewer in ((8, 1), (80, 0)):
        p = Products(16, 16, 16, dtype=FLOAT32)
        value: Value = p.made[0]
        for _ in range(between):
            value = p.emit("Tanh", value)
        late = p.emit("MatMul", p.x, p.parameter("other", (16, 16)))
        assert p.joined(value, p.emit("Tanh", late)) == fewer


def test_what_would_wait_over_an_update_stays() -> None:
    for changed, fewer in ((False, 1), (True, 0)):
        p = Products(16, 16, 16, dtype=FLOAT32)
        other = p.parameter("other", (16, 16), FLOAT32, "parameter")
        early = p.emit("Mul", p.made[0], other)
        if changed:
            p.emit("AssignAdd", other, other)
        late = p.emit("MatMul", p.x, p.emit("Tanh", p.parameter("made", (16, 16))))
        assert p.joined(early, p.emit("Tanh", late)) == fewer


def test_a_part_is_not_held_for_the_gradients_of_another() -> None:
    for needed, fewer in ((1, 0), (2, 1)):
        p = Products(8192, 1024, 1024, 1024)
        results = [p.emit("Tanh", y) for y in p.made]
        for y in p.made[:needed]:
            results.append(p.emit("Exp", y))
            results[-1].phase = "backward"
        assert p.joined(*results) == fewer


def test_a_bias_for_one_stays_a_part_of_its_product() -> None:
    for rows, fewer in ((16384, 0), (256, 1)):
        p = Products(rows, 1024, 1024, 1024)
        biased = p.emit("BiasAdd", p.made[0], p.parameter("b", (1024,)))
        assert p.joined(biased, p.emit("Tanh", p.made[1])) == fewer


def test_what_reads_a_product_waits_for_the_others() -> None:
    p = Products(16, 16, 16, dtype=FLOAT32)
    early = p.emit("Tanh", p.made[0])
    scaled = p.emit("Mul", p.parameter("other", (16, 16)), p.parameter("factor", (16, 16)))
    late = p.emit("MatMul", p.x, scaled)
    graph = p.finish(early, p.emit("Sub", late, early))
    left_behind(JoinProducts(), graph)
    assert products(graph) == 1


def test_no_collective_passes_another() -> None:
    for between, fewer in ((False, 3), (True, 1)):
        p = Products(16, 16, 16, 16, dtype=FLOAT32)
        slopes = [p.emit("Tanh", p.parameter(f"g{i}", (16, 16))) for i in range(2)]
        group: dict[str, Any] = {"op": "sum", "group": "g", "rank_list": (0, 1)}
        sent: list[Value] = []
        terms: list[Value] = []
        for i, dy in enumerate(slopes):
            terms.append(p.emit("MatMul", dy, p.cast[i], transpose_b=True))
            sent.append(p.emit("AllReduce", p.emit("MatMul", p.x, dy, transpose_a=True), **group))
            if between and i == 0:
                sent.append(p.emit("AllReduce", p.parameter("loss", ()), **group))
                slopes[1] = p.emit("Tanh", p.emit("Add", slopes[1], sent[-1]))
        order = [node for node in p.graph.nodes if node.op.name == "AllReduce"]
        assert p.joined(*(p.emit("Tanh", y) for y in p.made), p.emit("AddN", *terms), *sent) == fewer
        assert [node for node in p.graph.nodes if node.op.name == "AllReduce"] == order


# simplify_products: products of transposed operands, transposed products and sums of them, in any order.


def doubles(*shapes: tuple[int, ...]) -> tuple[Graph, Builder, list[Parameter]]:
    return graph_of(*(TensorType(FLOAT64, shape) for shape in shapes))


def simplified(graph: Graph) -> list[str]:
    return left_behind(SimplifyProducts(), graph)


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("op", [MatMul, BatchMatMul])
def test_transposes_of_operands_and_of_the_product_become_flags(
    op: type[MatMul | BatchMatMul], turned: tuple[bool, bool], flags: tuple[bool, bool]
) -> None:
    batch = (2, 3) if op is BatchMatMul else ()
    swap = (*range(len(batch)), len(batch) + 1, len(batch))
    sides = [(4, 5), (5, 6)]
    stored = [s[::-1] if t != f else s for s, t, f in zip(sides, turned, flags, strict=True)]
    graph, b, parameters = doubles(*[(*batch, *side) for side in stored])
    operands = [b.emit(Transpose(swap), x) if t else x for x, t in zip(parameters, turned, strict=True)]
    graph.results = [b.emit(Transpose(swap), b.emit(op(*flags), *operands))]
    assert simplified(graph) == [op.__name__]


def test_transposes_count_as_one_and_pass_reshapes_of_the_batch() -> None:
    graph, b, (q, k) = doubles((6, 4, 8), (2, 4, 3, 8))
    by_head = b.emit(Transpose((0, 1, 3, 2)), b.emit(Transpose((0, 2, 1, 3)), k))
    product = b.emit(BatchMatMul(), q, b.emit(Reshape((6, 8, 4)), by_head))
    graph.results = [b.emit(Transpose((0, 1, 3, 2)), b.emit(Reshape((2, 3, 4, 4)), product))]
    assert simplified(graph) == ["Transpose", "BatchMatMul"]
    assert graph.nodes[0].op == Transpose((0, 2, 1, 3))


def test_a_product_that_is_read_as_it_is_stays() -> None:
    graph, b, (x, y) = doubles((4, 5), (5, 6))
    product = b.emit(MatMul(), x, y)
    graph.results = [b.emit(Transpose((1, 0)), product), product]
    graph.returns_tuple = True
    assert simplified(graph) == ["MatMul", "Transpose"]


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("axes", [(0, 1), (-3, 0), (1,)])
def test_the_gradient_of_a_matrix_is_one_product(axes: tuple[int, ...], keep_dims: bool) -> None:
    graph, b, (x, dout) = doubles((2, 3, 4, 5), (2, 3, 4, 6))
    graph.results = [b.emit(ReduceSum(keep_dims, axes), b.emit(BatchMatMul(transpose_a=True), x, dout))]
    assert simplified(graph) == ["MatMul" if len(axes) == 2 else "BatchMatMul"]


@pytest.mark.parametrize(
    ("shapes", "op", "axis"),
    [
        pytest.param(((2, 3, 4, 5), (2, 3, 4, 6)), BatchMatMul(transpose_a=True), (0,), id="not the last of the batch"),
        pytest.param(((2, 3, 4, 5), (2, 3, 4, 6)), BatchMatMul(transpose_a=True), (1, 2), id="rows"),
        pytest.param(((3, 4, 5), (1, 4, 6)), BatchMatMul(transpose_a=True), (0,), id="a broadcast operand"),
        pytest.param(((3, 5, 4), (3, 4, 6)), BatchMatMul(), (0,), id="rows that lie apart"),
    ],
)
def test_other_sums_of_products_stay(
    shapes: tuple[tuple[int, ...], ...], op: BatchMatMul, axis: tuple[int, ...]
) -> None:
    graph, b, (x, y) = doubles(*shapes)
    graph.results = [b.emit(ReduceSum(False, axis), b.emit(op, x, y))]
    assert simplified(graph) == ["BatchMatMul", "ReduceSum"]


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=2)))
def test_products_of_many_steps_are_summed_by_one(flags: tuple[bool, bool]) -> None:
    sides = [side[::-1] if flag else side for side, flag in zip([(30, 4), (4, 40)], flags, strict=True)]
    graph, b, parameters = doubles(*sides * 3, (30, 40))
    products = [b.emit(MatMul(*flags), *parameters[i : i + 2]) for i in (0, 2, 4)]
    graph.results = [b.emit(AddN(), *products, parameters[-1])]
    assert simplified(graph) == ["Concat", "Concat", "MatMul", "AddN"]


def test_products_of_halves_are_summed_in_float32() -> None:
    graph, b, parameters = doubles((4, 30), (4, 40), (4, 30), (4, 40))
    halves = [b.emit(Cast(BFLOAT16), value) for value in parameters]
    terms = [b.emit(Cast(FLOAT32), b.emit(MatMul(True), *halves[i : i + 2])) for i in (0, 2)]
    graph.results = [b.emit(AddN(), *terms)]
    feeds = random_feeds(graph)
    exact = sum(feeds[f"x{i}"].T @ feeds[f"x{i + 1}"] for i in (0, 2))
    SimplifyProducts().run(graph)
    graph.verify()
    assert graph.nodes[-1].op == FusedMatMul(True, wide=True)
    assert np.abs(run_global(graph, feeds)[0] - exact).max() < 0.03


def test_large_operands_are_not_joined() -> None:
    graph, b, (x, y, u, v) = doubles((4, 90), (90, 5), (4, 90), (90, 5))
    graph.results = [b.emit(AddN(), b.emit(MatMul(), x, y), b.emit(MatMul(), u, v))]
    assert simplified(graph) == ["MatMul", "MatMul", "AddN"]


def test_a_vector_has_no_matrices_to_exchange() -> None:
    graph, b, (x, y) = doubles((1, 5), (5, 4))
    row = b.emit(Reshape((4,)), b.emit(MatMul(), x, y))
    graph.results = [b.emit(Transpose((0,)), row)]
    assert simplified(graph) == ["MatMul", "Transpose"]


def test_a_weight_is_read_before_its_update() -> None:
    graph, b, (w, x, new) = doubles((4, 5), (4, 6), (4, 5))
    turned: Value = b.emit(Transpose((1, 0)), w)
    b.emit(Assign(), w, new)
    graph.results = [b.emit(MatMul(), turned, x)]
    SimplifyProducts().run(graph)
    assert graph.nodes[-1].inputs[0] is turned


# products_of_rows: products of a batch with one matrix, and the gradients of that matrix.


def changed(graph: Graph) -> list[str]:
    return left_behind(ProductsOfRows(), graph)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("batch", [(4,), (2, 3), (1, 1)])
def test_one_matrix_multiplies_all_rows(batch: tuple[int, ...], transpose: bool) -> None:
    graph, b, (x, w, v) = doubles((*batch, 5, 6), (7, 6) if transpose else (6, 7), (7, 3))
    graph.results = [b.emit(BatchMatMul(), b.emit(BatchMatMul(False, transpose), x, w), v)]
    assert changed(graph) == ["MatMul", "MatMul"]
    assert graph.results[0].shape == (*batch, 5, 3)


def test_the_gradient_of_one_matrix_is_one_product() -> None:
    graph, b, (x, dy) = doubles((4, 3, 5, 6), (4, 3, 5, 7))
    graph.results = [b.emit(ReduceSum(axis=(0, 1)), b.emit(BatchMatMul(True, False), x, dy))]
    assert changed(graph) == ["MatMul"]


def test_a_parameter_that_changes_ahead_of_the_sum_is_read_as_it_was() -> None:
    graph, b, (x, dy) = doubles((4, 5, 6), (4, 5, 7))
    product = b.emit(BatchMatMul(True, False), x, dy)
    b.emit(Assign(), x, b.emit(Add(), x, x))
    graph.results = [b.emit(ReduceSum(axis=(0,)), product)]
    assert changed(graph) == ["MatMul", "Add", "Assign"]


def test_what_is_no_product_of_rows_stays() -> None:
    """A matrix for each of the batch, columns that are multiplied, a sum over some of the batch, and a product that
    something else reads."""
    graph, b, (x, y, z, w) = doubles((4, 3, 5, 6), (4, 3, 6, 7), (4, 3, 5, 7), (5, 7))
    several = b.emit(BatchMatMul(True, False), x, z)
    graph.results = [
        b.emit(BatchMatMul(), x, y), b.emit(BatchMatMul(True, False), x, w), several,
        b.emit(ReduceSum(axis=(0, 1)), several),
        b.emit(ReduceSum(axis=(1,)), b.emit(BatchMatMul(True, False), x, z)),
    ]  # fmt: skip
    assert changed(graph).count("BatchMatMul") == 4


IMAGES, LENGTHS, GROUPS, EACH = 3, (4, 5), 2, 3
CHANNELS = GROUPS * EACH
IMAGE = (IMAGES, *LENGTHS, CHANNELS)
PARTED = (IMAGES, *LENGTHS, GROUPS, EACH)
SCALES: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    IMAGE: ((CHANNELS,), (IMAGES, 1, 1, CHANNELS), (1,), (LENGTHS[1], 1), (IMAGES, 1, 1, 1)),
    PARTED: ((GROUPS, EACH), (IMAGES, 1, 1, GROUPS, 1), (EACH,), (LENGTHS[0], 1, 1, 1)),
}
AXES = ((0, 1, 2), (1, 2), (2,), (0, 1), (1, 2, 3), (0,), ())


def random_sums(seed: int) -> Graph:
    """Sums along some dimensions of products of the same images by factors of all shapes, in two shapes."""
    draw = random.Random(seed)
    shapes = [IMAGE, *{shape for each in SCALES.values() for shape in each}]
    graph, b, (x, y, *scales) = new_graph(
        x=("input", IMAGE), y=("input", PARTED), **{f"s{i}": ("parameter", shape) for i, shape in enumerate(shapes)}
    )
    images: list[Value] = [x, y, b.emit(op("Tanh"), x)]
    for _ in range(draw.randint(4, 12)):
        one = draw.choice(images)
        shape = one.shape
        kind = draw.randrange(5)
        if kind == 0:
            images.append(b.emit(op("Reshape", shape=PARTED if shape == IMAGE else IMAGE), one))
        elif kind == 1:
            images.append(b.emit(op("Mul"), one, draw.choice([each for each in images if each.shape == shape])))
        else:
            fitting = [each for each in scales if each.shape in SCALES[shape]]
            images.append(b.emit(op("Mul"), one, draw.choice(fitting)))
        reduced = op(draw.choice(("ReduceSum", "ReduceMean")), axis=draw.choice(AXES), keep_dims=draw.random() < 0.5)
        graph.results.append(b.emit(reduced, draw.choice(images)))
    return graph


@settings(max_examples=share_of(150), deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_sums_compute_the_same(seed: int) -> None:
    expected = run(fused(random_sums(seed), "execute"))
    graph = run_passes(random_sums(seed), parse_passes("share_sums"))
    graph.verify()
    found = run(fused(graph, "fuse_rows,fuse_elementwise,execute"))
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1, float(np.abs(a).max())))


def test_many_of_these_graphs_share_sums() -> None:
    assert sum(ShareSums().run(random_sums(seed)) for seed in range(40)) > 8


def gradients(b: Builder, dy: Value, apart: Value, inverse: Value, gamma: Value) -> list[Value]:
    """The shift and scale of a group norm, and two means of groups that the image's needs."""
    shift = b.emit(op("ReduceSum", axis=(0, 1, 2)), dy)
    hat = b.emit(op("Mul"), apart, inverse)
    scale = b.emit(op("ReduceSum", axis=(0, 1, 2)), b.emit(op("Mul"), dy, b.emit(op("Reshape", shape=IMAGE), hat)))
    g = b.emit(op("Reshape", shape=PARTED), b.emit(op("Mul"), dy, gamma))
    means = [b.emit(op("ReduceMean", axis=(1, 2), keep_dims=True), each) for each in (g, b.emit(op("Mul"), g, hat))]
    return [shift, scale, *means]


def test_the_gradients_of_a_group_norm_are_two_sums_over_places() -> None:
    """Beside them are sums over the images, of little; a kernel adds both up in one pass."""
    graph, b, (dy, apart, inverse, gamma) = new_graph(
        dy=("input", IMAGE), apart=("input", PARTED), inverse=("input", (IMAGES, 1, 1, GROUPS, 1)),
        gamma=("parameter", (CHANNELS,)),
    )  # fmt: skip
    hidden = b.emit(op("Neg"), dy)
    graph.results = gradients(b, hidden, apart, inverse, gamma)
    expected = run(graph)
    graph = run_passes(graph, parse_passes("share_sums"))
    sums = [node for node in graph.nodes if node.op.name in ("ReduceSum", "ReduceMean")]
    assert sum(node.inputs[0].tensor_type.size == dy.tensor_type.size for node in sums) == 2
    for a, c in zip(expected, run(graph), strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)
    kernels = fused(graph, "fuse_rows,fuse_elementwise")
    assert sum(kernels_read(kernels, "dy")) == 1, names(kernels)


def kernels_read(graph: Graph, name: str) -> list[bool]:
    """For every node whether it reads a parameter."""
    return [any(getattr(value, "name", "") == name for value in node.inputs) for node in graph.nodes]


@pytest.mark.parametrize("reason", ["rows", "few", "varies", "updated"])
def test_sums_that_stay(reason: str) -> None:
    graph, b, (x, s, c) = new_graph(
        x=("parameter", IMAGE), s=("parameter", (LENGTHS[1], 1)), c=("parameter", (CHANNELS,))
    )
    axes = {"rows": (3,), "few": (0,)}.get(reason, (1, 2))
    first = b.emit(op("ReduceSum", axis=axes), x)
    other: Value = x
    if reason == "updated":
        other = b.emit(op("Assign"), x, b.emit(op("Neg"), x))
    scaled = b.emit(op("Mul"), other, s if reason in ("varies", "rows") else c)
    graph.results = [first, b.emit(op("ReduceSum", axis=axes), scaled)]
    before = names(graph)
    assert names(run_passes(graph, parse_passes("share_sums"))) == before

SHAPE = (2, 6, 3)


def joined(*slices: tuple[slice | int | None, ...], besides: int = 0) -> list[str]:
    """The operators behind the pass for a sum of the gradients of slices of a tensor, and of other tensors; the numbers
    are checked to be the same."""
    graph = Graph("net")
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    b = Builder(graph)
    terms = []
    for number, entries in enumerate(slices):
        given = [slice(e, e + 1, 1) if isinstance(e, int) else e for e in entries]
        fields = {
            "begin": tuple(e.start for e in given), "end": tuple(e.stop for e in given),
            "strides": tuple(e.step or 1 for e in given),
            "shrink_axis_mask": sum(1 << i for i, e in enumerate(entries) if isinstance(e, int)),
        }  # fmt: skip
        dout = Parameter(f"d{number}", TensorType(FLOAT32, np.empty(SHAPE)[entries].shape))
        graph.parameters.append(dout)
        terms.append(b.emit(StridedSliceGrad(**fields, shape=SHAPE), dout))
    others = [Parameter(f"x{i}", TensorType(FLOAT32, SHAPE)) for i in range(besides)]
    graph.parameters += others
    graph.results = [b.emit(AddN(), *terms, *others)]
    return left_behind(JoinSlices(), graph)


TWO, THREE = slice(0, 2), slice(0, 3)


def test_steps_of_a_sequence_are_stacked() -> None:
    whole = slice(0, 3)
    assert joined(*[(slice(0, 2), i, whole) for i in (3, 1, 0, 5, 4, 2)]) == ["Concat"]


@pytest.mark.parametrize("besides", [0, 1, 2])
def test_parts_of_any_length_are_joined_and_others_are_added(besides: int) -> None:
    parts = [(slice(0, 2), slice(a, b), slice(0, 3)) for a, b in ((0, 1), (1, 4), (4, 6))]
    assert joined(*parts, besides=besides) == (["Concat", "AddN"] if besides else ["Concat"])


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(TWO, slice(0, 3), THREE), (TWO, slice(4, 6), THREE)], id="a gap"),
        pytest.param([(TWO, slice(0, 4), THREE), (TWO, slice(3, 6), THREE)], id="overlap"),
        pytest.param([(TWO, slice(0, 6, 2), THREE), (TWO, slice(1, 6, 2), THREE)], id="steps"),
        pytest.param([(slice(0, 1), slice(0, 3), THREE), (slice(1, 2), slice(3, 6), THREE)], id="corners"),
        pytest.param([(TWO, slice(0, 3), THREE), (slice(0, 1), slice(0, 6), THREE)], id="two ways"),
    ],
)
def test_what_does_not_make_up_the_tensor_is_added(parts: list[tuple[slice, ...]]) -> None:
    assert joined(*parts) == ["StridedSliceGrad", "StridedSliceGrad", "AddN"]
