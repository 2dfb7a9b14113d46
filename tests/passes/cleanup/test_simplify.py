"""What `simplify` says of its own work."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import Neg
from mspc.passes.cleanup.simplify import Simplify


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_it_has_changed_something_where_nodes_are_gone(dead: int) -> None:
    graph = Graph("simplify")
    x = Parameter("x", TensorType(FLOAT32, (2,)))
    graph.parameters = [x]
    b = Builder(graph)
    graph.results = [b.emit(Neg(), x)]
    for _ in range(dead):
        b.emit(Neg(), graph.nodes[-1])
    assert Simplify().run(graph) is (dead > 0)
    assert len(graph.nodes) == 1
