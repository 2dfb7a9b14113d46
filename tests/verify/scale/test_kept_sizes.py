"""Which dimensions keep their sizes, and which do not."""

from __future__ import annotations

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Parameter, Value
from mspc.ir.types import FLOAT32, INT64, TensorType
from mspc.ops.control.structural import StopGradient
from mspc.ops.math.arithmetic import Add
from mspc.ops.tensor.embedding import GatherGrad
from mspc.ops.tensor.parts import PadV3
from mspc.ops.tensor.reshape import Reshape
from mspc.verify.scale.program_sizes import Sizing, keep_constants


def divisors(parameter: Parameter, builder: Builder, result: Value, *of: Value) -> list[list[int]]:
    """By how much the dimensions of values become smaller, of a program with this parameter and result."""
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [parameter], builder.nodes, [result]
    sizing = Sizing()
    sizing.add(graph)
    keep_constants(sizing)
    sizing.resolve()
    return [[sizing.divisor(dim) for dim in sizing.dims(value)[0]] for value in of]


def test_dimensions_that_constants_alone_have() -> None:
    """The diagonal's places in a square's elements: ranks might take others of them than one device."""
    square = Parameter("square", TensorType(FLOAT32, (12, 12)))
    builder = Builder(Graph("net"))
    ones = Constant(np.full(12, -1.0, np.float32), FLOAT32)
    places = Constant(np.arange(0, 144, 13), INT64)
    diagonal = builder.emit(Reshape((12, 12)), builder.emit(GatherGrad(144), ones, places))
    added = builder.emit(Add(), square, diagonal)
    assert divisors(square, builder, added, ones, places) == [[1], [1]]


def test_margins_and_stopped_gradients() -> None:
    rows = Parameter("rows", TensorType(FLOAT32, (64, 32)))
    builder = Builder(Graph("net"))
    stopped = builder.emit(StopGradient(), rows)
    wider = builder.emit(PadV3(paddings=(0, 1)), stopped, builder.constant(0.0, FLOAT32))
    ((over, along),) = divisors(rows, builder, wider, rows)
    assert over > 1
    assert along == 1
