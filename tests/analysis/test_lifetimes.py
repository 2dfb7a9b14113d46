"""How long values are needed."""

from __future__ import annotations

from mspc.analysis.aliasing import results_over
from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import Add, Mul


def test_results_are_over_behind_their_last_readers() -> None:
    graph = Graph("main")
    graph.parameters = [Parameter("x", TensorType(FLOAT32, (2,)))]
    b = Builder(graph)
    first = b.emit(Add(), *graph.parameters * 2)
    second = b.emit(Mul(), first, first)
    unread = b.emit(Mul(), second, graph.parameters[0])
    shown = b.emit(Add(), first, graph.parameters[0])
    b.emit(Add(), shown, shown)
    graph.results = [shown]
    assert results_over(graph) == [[], [], [second, unread], [first], [graph.nodes[4]]]
