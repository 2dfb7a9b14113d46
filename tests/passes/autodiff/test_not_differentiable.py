"""Gradients through operators that have none."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.math.arithmetic import Mul
from mspc.ops.nn.activation import SiLUGrad
from mspc.passes.autodiff.grad import Grad


def gradient_of(operands: str) -> Graph:
    """The gradient for x of an operator without one, of two of x, y and z = 2 x."""
    graph = Graph("net")
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    x, y = (Parameter(name, TensorType(FLOAT32, (4, 4))) for name in "xy")
    graph.parameters = [x, y]
    b = Builder(graph)
    of = {"x": x, "y": y, "z": b.emit(Mul(), x, b.constant(2.0, FLOAT32))}
    shared = b.emit(SiLUGrad(), *(of[name] for name in operands))
    graph.results = [b.emit(TupleGetItem(0), b.emit(Gradient(outputs=1), shared, x))]
    return graph


@pytest.mark.parametrize("operands", ["xx", "xy", "yx", "zz", "zy", "xz"])
def test_it_is_an_error_whichever_operand_asks(operands: str) -> None:
    with pytest.raises(MspcError, match="SiLUGrad has no gradient"):
        Grad().run(gradient_of(operands))


def test_operands_that_nobody_asks_for_need_none() -> None:
    graph = gradient_of("yy")
    Grad().run(graph)
    assert [node.op.name for node in graph.nodes if node.phase == "backward"].count("SiLUGrad") == 0
