"""What is made up for a network that brings no inputs."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Parameter
from mspc.ir.types import BOOL, INT64, TensorType
from mspc.ops.math.arithmetic import Mul
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.reshape import ExpandDims
from mspc.verify.made_inputs import made_inputs

ROWS = TensorType(INT64, (64, 5))


def test_of_a_mask_no_row_is_hidden_whole() -> None:
    """An input of which it is asked whether it is 0, in one way or another; and one of which more is read."""
    graph = Graph("net")
    mask, seen, both = graph.parameters = [Parameter(name, ROWS, "input") for name in ("mask", "seen", "both")]
    b = Builder(graph)
    b.emit(Cast(dst_type=BOOL), mask)
    b.emit(Cast(dst_type=BOOL), b.emit(ExpandDims(axis=1), seen))
    graph.results = [b.emit(Cast(dst_type=BOOL), both), b.emit(Mul(), both, Constant(2, INT64))]
    made = made_inputs(graph, [ROWS] * 3, [], seed=0, steps=1)
    for name in ("mask", "seen"):
        (array,) = made[name].arrays
        assert set(array.ravel().tolist()) == {0, 1}
        assert array[:, 0].all()
        assert made[name].said == "0 or 1, in every row 1 first"
    assert made["both"].said == "integers in [0, 8)"
