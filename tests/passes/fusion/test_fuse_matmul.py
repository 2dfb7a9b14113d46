"""fuse_matmul: sums of products and of other tensors, however many there are of either."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.matmul import MatMul
from mspc.ops.modules import load_operators
from mspc.passes.fusion.fuse_matmul import FuseMatmul
from tests.interpret import random_feeds, run_global, same

load_operators()


@pytest.mark.parametrize("others", [0, 1, 2, 3])
@pytest.mark.parametrize("products", [1, 2, 3])
def test_a_sum_is_part_of_its_products_where_at_most_one_term_is_none(products: int, others: int) -> None:
    graph = Graph("sum")
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    x, w = (Parameter(name, TensorType(FLOAT32, (8, 8))) for name in "xw")
    beside = [Parameter(f"y{i}", TensorType(FLOAT32, (8, 8))) for i in range(others)]
    graph.parameters = [x, w, *beside]
    b = Builder(graph)
    terms = [b.emit(MatMul(transpose_b=bool(i % 2)), x, w) for i in range(products)]
    graph.results = [b.emit(AddN(), *terms, *beside)]
    feeds = random_feeds(graph)
    expected = run_global(graph, feeds)
    FuseMatmul().run(graph)
    graph.verify()
    same(run_global(graph, feeds), expected)
    joined = others == 1 or (others == 0 and products > 1)
    assert any(isinstance(node.op, AddN) for node in graph.nodes) is not joined
