"""products_of_rows: products of a batch with one matrix, and the gradients of that matrix."""

from __future__ import annotations

import pytest

from mspc.ir.graph import Graph
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.matmul import BatchMatMul
from mspc.ops.optim.optimizer import Assign
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.passes.fusion.products_of_rows import ProductsOfRows
from tests.interpret import left_behind
from tests.passes.fusion.test_simplify_products import graph_of


def changed(graph: Graph) -> list[str]:
    return left_behind(ProductsOfRows(), graph)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("batch", [(4,), (2, 3), (1, 1)])
def test_one_matrix_multiplies_all_rows(batch: tuple[int, ...], transpose: bool) -> None:
    graph, b, (x, w, v) = graph_of((*batch, 5, 6), (7, 6) if transpose else (6, 7), (7, 3))
    graph.results = [b.emit(BatchMatMul(), b.emit(BatchMatMul(False, transpose), x, w), v)]
    assert changed(graph) == ["MatMul", "MatMul"]
    assert graph.results[0].shape == (*batch, 5, 3)


def test_the_gradient_of_one_matrix_is_one_product() -> None:
    graph, b, (x, dy) = graph_of((4, 3, 5, 6), (4, 3, 5, 7))
    graph.results = [b.emit(ReduceSum(axis=(0, 1)), b.emit(BatchMatMul(True, False), x, dy))]
    assert changed(graph) == ["MatMul"]


def test_a_parameter_that_changes_ahead_of_the_sum_is_read_as_it_was() -> None:
    graph, b, (x, dy) = graph_of((4, 5, 6), (4, 5, 7))
    product = b.emit(BatchMatMul(True, False), x, dy)
    b.emit(Assign(), x, b.emit(Add(), x, x))
    graph.results = [b.emit(ReduceSum(axis=(0,)), product)]
    assert changed(graph) == ["MatMul", "Add", "Assign"]


def test_what_is_no_product_of_rows_stays() -> None:
    """A matrix for each of the batch, columns that are multiplied, a sum over some of the batch, and a product that
    something else reads."""
    graph, b, (x, y, z, w) = graph_of((4, 3, 5, 6), (4, 3, 6, 7), (4, 3, 5, 7), (5, 7))
    several = b.emit(BatchMatMul(True, False), x, z)
    graph.results = [
        b.emit(BatchMatMul(), x, y), b.emit(BatchMatMul(True, False), x, w), several,
        b.emit(ReduceSum(axis=(0, 1)), several),
        b.emit(ReduceSum(axis=(1,)), b.emit(BatchMatMul(True, False), x, z)),
    ]  # fmt: skip
    assert changed(graph).count("BatchMatMul") == 4
