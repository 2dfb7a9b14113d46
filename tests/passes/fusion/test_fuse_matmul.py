"""fuse_matmul: sums of products and of other tensors, however many there are of either, and products of halves that are
widened for them."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.graph import Graph
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType, TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.math.matmul import BiasAdd, MatMul
from mspc.ops.nn.activation import Sigmoid
from mspc.ops.op import load_operators
from mspc.ops.optim.optimizer import Assign
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.reshape import Cast
from mspc.passes.fusion.fuse_matmul import FuseMatmul
from tests.interpret import left_behind, random_feeds, run_global
from tests.passes.fusion.written import graph_of

load_operators()


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
