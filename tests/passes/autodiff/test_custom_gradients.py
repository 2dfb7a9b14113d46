"""What stands for gradients that the script gives goes as a whole."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Mul, Neg
from mspc.passes.lib.gradients import drop_own_gradients


def test_no_placeholder_and_nothing_computed_of_one_is_left() -> None:
    graph = Graph("g")
    x = Parameter("x", TensorType(FLOAT32, (3,)))
    graph.parameters.append(x)
    b = Builder(graph)
    result = b.emit(Mul(), x, x)
    placeholder = b.emit(GradientPlaceholder(type=result.type))
    own = b.emit(OwnGradient(), result, x, placeholder, b.emit(Neg(), placeholder))
    read = b.emit(Neg(), b.emit(TupleGetItem(0), own))
    graph.results = [read]
    assert drop_own_gradients(graph)
    assert graph.nodes == [result, read]
    assert read.inputs == [result]
    assert not drop_own_gradients(graph)
