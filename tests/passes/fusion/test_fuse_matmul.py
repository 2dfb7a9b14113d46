"""fuse_matmul: sums of products and of other tensors, however many there are of either, and products of halves that are
widened for them.
fuse_norm: what the golden case does not show.
"""

from pathlib import Path

import numpy as np
import pytest

from mspc.ops.fused.norms import FusedLayerNormGrad
from mspc.ops.math.matmul import BiasAdd, MatMul
from mspc.ops.nn.batch_norm import BatchNorm, BatchNormGrad
from mspc.ops.nn.norm import LayerNorm, LayerNormGammaGrad, LayerNormGrad
from mspc.ops.tensor.reshape import Cast, ReduceSum
from mspc.passes.fusion.fuse_matmul import FuseMatmul
from mspc.passes.fusion.fuse_norm import FuseNorm
from mspc.passes.fusion.split_batch_norm import SplitBatchNorm
from tests.graphs import BFLOAT16, FLOAT16, FLOAT32, REGISTRY, DType, Graph, Node, Op, TensorType, parse
from tests.interpret import left_behind, random_feeds, run_global, same
from tests.operators import Add, AddN, AllReduce, Assign, FusedMatMul, Mul, Sigmoid, Split, TupleGetItem
from tests.passes.fusion.written import graph_of


@pytest.mark.parametrize("others", [0, 1, 2, 3])
@pytest.mark.parametrize("products", [1, 2, 3])
def test_a_sum_is_part_of_its_products_where_at_most_one_term_is_none(products: int, others: int) -> None:
    graph, b, (x, w, *beside) = graph_of(*[TensorType(FLOAT32, (8, 8))] * (2 + others))
    terms = [b.emit(MatMul(transpose_b=bool(i % 2)), x, w) for i in range(products)]
    graph.results = [b.emit(AddN(), *terms, *beside)]
    left_behind(FuseMatmul(), graph)
    joined = others == 1 or (others == 0 and products > 1)
    assert any(isinstance(node.op, AddN) for node in graph.nodes) is not joined


def widened_sums(half: DType, last: str) -> Graph:
    """x @ w is widened, a bias and another tensor are added, and the sum is split, squashed or handed back."""
    types = TensorType(half, (8, 64)), TensorType(half, (64, 6)), TensorType(FLOAT32, (6,)), TensorType(FLOAT32, (8, 6))
    graph, b, (x, w, bias, before) = graph_of(*types, kind="input")
    total = b.emit(Add(), before, b.emit(BiasAdd(), b.emit(Cast(FLOAT32), b.emit(MatMul(), x, w)), bias))
    graph.results = [total] if last == "result" else [b.emit(Sigmoid(), total)]
    if last == "split":
        parts = b.emit(Split(1, 2), total)
        graph.results, graph.returns_tuple = [b.emit(TupleGetItem(i), parts) for i in range(2)], True
        graph.nodes = [node for node in graph.nodes if not isinstance(node.op, Sigmoid)]
    return graph


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("last", ["result", "split"])
def test_a_product_of_halves_is_float32_at_once_where_its_sum_is_written_so(half: DType, last: str) -> None:
    graph = widened_sums(half, last)
    feeds = random_feeds(graph)
    before = np.concatenate(run_global(graph, feeds), -1)
    FuseMatmul().run(graph)
    graph.verify()
    assert graph.nodes[0].op == FusedMatMul(addend=True, bias=True, wide=True)
    x, w, bias, addend = feeds.values()
    exact = x.astype(np.float32) @ w.astype(np.float32) + bias + addend
    got = np.concatenate(run_global(graph, feeds), -1)
    assert np.abs(got - exact).max() < 1e-5 < np.abs(before - exact).max()


@pytest.mark.parametrize("changes", [False, True])
def test_a_total_of_gradients_is_added_to_where_a_product_makes_one(changes: bool) -> None:
    """Before what follows, so that nothing that a product reads is held for longer; the total is not copied. One that
    changes in between is read where it was."""
    types = TensorType(BFLOAT16, (64, 8)), TensorType(BFLOAT16, (64, 6)), TensorType(FLOAT32, (8, 6))
    graph, b, (x, dy, total) = graph_of(*types)
    gradient = b.emit(Cast(FLOAT32), b.emit(MatMul(transpose_a=True), x, dy))
    late = b.emit(Sigmoid(), dy)
    if changes:
        b.emit(Assign(), total, b.emit(Sigmoid(), total))
    graph.results, graph.returns_tuple = [b.emit(AddN(), total, gradient), late], True
    feeds = random_feeds(graph)
    before = run_global(graph, feeds)
    FuseMatmul().run(graph)
    graph.verify()
    place = next(i for i, node in enumerate(graph.nodes) if isinstance(node.op, FusedMatMul))
    assert graph.nodes[place].op == FusedMatMul(transpose_a=True, addend=True, wide=True)
    assert (place > graph.nodes.index(graph.results[1])) == changes
    for found, wanted in zip(run_global(graph, feeds), before, strict=True):
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=0, atol=0.2)


@pytest.mark.parametrize(("sent", "half"), [(True, BFLOAT16), (False, BFLOAT16), (True, FLOAT16)], ids=str)
def test_a_product_is_float32_at_once_where_ranks_add_it_up_so(sent: bool, half: DType) -> None:
    """Unless it may overflow where another number of ranks would see it."""
    graph, b, (x, dy) = graph_of(TensorType(half, (64, 8)), TensorType(half, (64, 6)))
    gradient = b.emit(Cast(FLOAT32), b.emit(MatMul(transpose_a=True), x, dy))
    last = AllReduce(op="sum", group="2-5004544844489628105", rank_list=(0, 1)) if sent else Sigmoid()
    graph.results = [b.emit(last, gradient)]
    changes = sent and half == BFLOAT16
    assert FuseMatmul().run(graph) == changes
    graph.verify()
    wanted = [FusedMatMul(transpose_a=True, wide=True)] if changes else [MatMul(transpose_a=True), Cast(FLOAT32)]
    assert [node.op for node in graph.nodes[:-1]] == wanted


def test_a_product_of_halves_stays_narrow_where_a_kernel_widens_it_as_it_reads_it() -> None:
    graph = widened_sums(BFLOAT16, "sigmoid")
    assert not FuseMatmul().run(graph)
    assert isinstance(graph.nodes[0].op, MatMul)


SHAPES = ((4, 32), (32,), (32,))
CASE = Path(__file__).parent / "fuse_norm" / "residual.ir"


def residual() -> Graph:
    return parse(CASE.read_text(encoding="utf-8"), REGISTRY, file=CASE.name).main


def test_norm_whose_result_is_taken_out_twice() -> None:
    graph = residual()
    first = next(n for n in graph.nodes if n.op == TupleGetItem(0) and n.inputs[0].op.name == "LayerNorm")  # type: ignore[attr-defined]
    again = Node(first.op, first.inputs, first.type, "again")
    graph.nodes.insert(graph.nodes.index(first) + 1, again)
    graph.results.append(again)
    graph.returns_tuple = True
    left_behind(FuseNorm(), graph)


def test_unused_norm_of_a_sum_that_others_read() -> None:
    """A norm that only shows how it is sharded goes later, and would take the sum with it."""
    for unused in (False, True):
        graph = residual()
        total = next(n for n in graph.nodes if n.op.name == "Add")
        norm = [n for n in graph.nodes if n.op.name == "LayerNorm"][-1]
        cast = norm.inputs[0]
        assert isinstance(cast, Node)
        cast.inputs = [total]
        if unused:
            norm.attrs["unused"] = True
        FuseNorm().run(graph)
        graph.verify()
        assert (norm in graph.nodes, total in graph.nodes) == (unused, unused)


MIXED = *[TensorType(FLOAT16, (4, 32))] * 2, *[TensorType(FLOAT32, (32,))] * 2


def test_a_sum_that_stands_before_the_parameters_of_its_norm_is_not_joined() -> None:
    """Under O3 the parameters are cast between the two."""
    graph, b, (x, y, gamma, beta) = graph_of(*MIXED)
    total = b.emit(Add(), x, y)
    casts = [b.emit(Cast(dst_type=FLOAT16), p) for p in (gamma, beta)]
    norm = b.emit(LayerNorm(-1, -1), total, *casts)
    graph.results.append(b.emit(Add(), b.emit(TupleGetItem(0), norm), total))
    left_behind(FuseNorm(), graph)


def test_a_norm_of_halves_with_parameters_of_float32_gives_halves() -> None:
    graph, b, (x, y, gamma, beta) = graph_of(*MIXED)
    graph.results.append(b.emit(TupleGetItem(0), b.emit(LayerNorm(-1, -1), b.emit(Add(), x, y), gamma, beta)))
    assert FuseNorm().run(graph)
    graph.verify()
    assert graph.nodes[0].op.name == "FusedLayerNorm"
    assert graph.results[0].tensor_type.dtype == FLOAT16


def test_a_norm_without_a_sum_or_a_conversion_beside_it_stays() -> None:
    graph, b, (x, gamma, beta) = graph_of(*(TensorType(FLOAT32, shape) for shape in SHAPES))
    norm = b.emit(LayerNorm(-1, -1), x, gamma, beta)
    graph.results.append(b.emit(TupleGetItem(0), norm))
    assert not FuseNorm().run(graph)
    assert norm in graph.nodes


@pytest.mark.parametrize("read_again", [False, True], ids=["by the norm alone", "by others"])
@pytest.mark.parametrize("narrow", [False, True], ids=["Float32", "a term in Float16"])
def test_a_gradient_that_is_a_sum_of_two_is_read_as_two(narrow: bool, read_again: bool) -> None:
    kind = FLOAT16 if narrow else FLOAT32
    types = [TensorType(FLOAT32, (4, 32)), TensorType(kind, (4, 32)), TensorType(FLOAT32, (4, 32))]
    types += [TensorType(FLOAT32, (4, 1))] * 2 + [TensorType(FLOAT32, (32,))]
    graph, b, (first, second, x, mean, variance, gamma) = graph_of(*types)
    dout = b.emit(AddN(), first, b.emit(Cast(FLOAT32), second) if narrow else second)
    scale = b.emit(LayerNormGammaGrad(-1, -1, 1e-5), dout, x, mean, variance)
    shift = b.emit(ReduceSum(False, (0,)), dout)
    gradient = b.emit(LayerNormGrad(-1, 1e-5), dout, x, mean, variance, gamma)
    graph.results = [b.emit(Mul(), gradient, x), b.emit(Add(), scale, shift), *([dout] if read_again else [])]
    graph.returns_tuple = True
    left_behind(FuseNorm(), graph)
    [made] = [node for node in graph.nodes if isinstance(node.op, FusedLayerNormGrad)]
    assert isinstance(made.op, FusedLayerNormGrad)
    assert made.op.joins != read_again
    assert made.inputs[0] is (dout if read_again else first)
    assert ("AddN" in made.attrs["fused"]) != read_again
    if not read_again:
        assert made.inputs[-1] is second


# split_batch_norm: batches of any number of values of a channel, also of one.


IMAGE_SHAPES = ((1, 3), (1, 3, 1, 1), (2, 3), (1, 3, 2, 1), (4, 3, 2, 2))


@pytest.mark.parametrize("shape", IMAGE_SHAPES, ids=str)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kind", [BatchNorm, BatchNormGrad])
def test_the_parts_compute_what_the_operator_does(kind: type[Op], trains: bool, shape: tuple[int, ...]) -> None:
    op = kind(is_training=trains)
    images = 1 if kind is BatchNorm else 2
    shapes = [shape] * images + [shape[1:2]] * (5 - images)
    graph, b, parameters = graph_of(*(TensorType(FLOAT32, shape) for shape in shapes))
    graph.results = [b.emit(op, *parameters)]
    feeds = {name: np.abs(value) + 0.5 for name, value in random_feeds(graph).items()}
    expected = run_global(graph, feeds)
    assert SplitBatchNorm().run(graph)
    graph.verify()
    assert not any(isinstance(node.op, kind) for node in graph.nodes)
    same(run_global(graph, feeds), expected)
