"""simplify_products: products of transposed operands, transposed products and sums of them, in any order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter, Value
from mspc.ir.types import BFLOAT16, FLOAT32, FLOAT64, TensorType
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import load_operators
from mspc.ops.optim.optimizer import Assign
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.fusion.simplify_products import SimplifyProducts
from tests.interpret import left_behind, random_feeds, run_global

load_operators()


def graph_of(*shapes: tuple[int, ...]) -> tuple[Graph, Builder, list[Parameter]]:
    graph = Graph("net")
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    graph.parameters = [Parameter(f"x{i}", TensorType(FLOAT64, shape), "parameter") for i, shape in enumerate(shapes)]
    return graph, Builder(graph), graph.parameters


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
    graph, b, parameters = graph_of(*[(*batch, *side) for side in stored])
    operands = [b.emit(Transpose(swap), x) if t else x for x, t in zip(parameters, turned, strict=True)]
    graph.results = [b.emit(Transpose(swap), b.emit(op(*flags), *operands))]
    assert simplified(graph) == [op.__name__]


def test_transposes_count_as_one_and_pass_reshapes_of_the_batch() -> None:
    graph, b, (q, k) = graph_of((6, 4, 8), (2, 4, 3, 8))
    by_head = b.emit(Transpose((0, 1, 3, 2)), b.emit(Transpose((0, 2, 1, 3)), k))
    product = b.emit(BatchMatMul(), q, b.emit(Reshape((6, 8, 4)), by_head))
    graph.results = [b.emit(Transpose((0, 1, 3, 2)), b.emit(Reshape((2, 3, 4, 4)), product))]
    assert simplified(graph) == ["Transpose", "BatchMatMul"]
    assert graph.nodes[0].op == Transpose((0, 2, 1, 3))


def test_a_product_that_is_read_as_it_is_stays() -> None:
    graph, b, (x, y) = graph_of((4, 5), (5, 6))
    product = b.emit(MatMul(), x, y)
    graph.results = [b.emit(Transpose((1, 0)), product), product]
    graph.returns_tuple = True
    assert simplified(graph) == ["MatMul", "Transpose"]


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("axes", [(0, 1), (-3, 0), (1,)])
def test_the_gradient_of_a_matrix_is_one_product(axes: tuple[int, ...], keep_dims: bool) -> None:
    graph, b, (x, dout) = graph_of((2, 3, 4, 5), (2, 3, 4, 6))
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
    graph, b, (x, y) = graph_of(*shapes)
    graph.results = [b.emit(ReduceSum(False, axis), b.emit(op, x, y))]
    assert simplified(graph) == ["BatchMatMul", "ReduceSum"]


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=2)))
def test_products_of_many_steps_are_summed_by_one(flags: tuple[bool, bool]) -> None:
    sides = [side[::-1] if flag else side for side, flag in zip([(30, 4), (4, 40)], flags, strict=True)]
    graph, b, parameters = graph_of(*sides * 3, (30, 40))
    products = [b.emit(MatMul(*flags), *parameters[i : i + 2]) for i in (0, 2, 4)]
    graph.results = [b.emit(AddN(), *products, parameters[-1])]
    assert simplified(graph) == ["Concat", "Concat", "MatMul", "AddN"]


def test_products_of_halves_are_summed_in_float32() -> None:
    graph, b, parameters = graph_of((4, 30), (4, 40), (4, 30), (4, 40))
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
    graph, b, (x, y, u, v) = graph_of((4, 90), (90, 5), (4, 90), (90, 5))
    graph.results = [b.emit(AddN(), b.emit(MatMul(), x, y), b.emit(MatMul(), u, v))]
    assert simplified(graph) == ["MatMul", "MatMul", "AddN"]


def test_a_vector_has_no_matrices_to_exchange() -> None:
    graph, b, (x, y) = graph_of((1, 5), (5, 4))
    row = b.emit(Reshape((4,)), b.emit(MatMul(), x, y))
    graph.results = [b.emit(Transpose((0,)), row)]
    assert simplified(graph) == ["MatMul", "Transpose"]


def test_a_weight_is_read_before_its_update() -> None:
    graph, b, (w, x, new) = graph_of((4, 5), (4, 6), (4, 5))
    turned: Value = b.emit(Transpose((1, 0)), w)
    b.emit(Assign(), w, new)
    graph.results = [b.emit(MatMul(), turned, x)]
    SimplifyProducts().run(graph)
    assert graph.nodes[-1].inputs[0] is turned
