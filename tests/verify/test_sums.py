"""What rounding makes of sums on one device: what may be apart because ranks add up in another order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter, copied_region
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.math.arithmetic import Add, Sub
from mspc.ops.math.matmul import MatMul
from mspc.ops.math.reduce import ReduceMax, ReduceMean
from mspc.ops.nn.activation import Tanh
from mspc.verify.difference import GROWTH
from mspc.verify.one_device import Movement, OneDevice, added_up, is_exact

FAR = 9.0
"""A tanh of this and more hardly moves with its operand."""


def near_one() -> tuple[Graph, Builder, Any]:
    """A program with rows of numbers near 1, which rounding errors of its input do not reach."""
    graph = Graph("net")
    x = Parameter("x", TensorType(FLOAT64, (48, 24)), "input")
    graph.parameters = [x]
    builder = Builder(graph, graph.nodes)
    return graph, builder, builder.emit(Tanh(), builder.emit(Add(), x, builder.constant(FAR, FLOAT64)))


def test_a_sum_that_is_zero_but_for_rounding_may_be_any_rounding() -> None:
    graph, builder, rows = near_one()
    apart = builder.emit(Sub(), rows, builder.emit(ReduceMean(True, (0,)), rows))
    graph.results = [builder.emit(ReduceMean(False, (0, 1)), apart), rows]
    device = OneDevice(graph, {}, [[[np.random.default_rng(0).uniform(0, 1, (48, 24))]]], "")
    expected = device.run()
    mean, near = (expected[0][0]["result", i] for i in (0, 1))
    in_halves = (near - (near[:24].mean(0) + near[24:].mean(0)) / 2).mean()  # as two ranks take them
    assert abs(in_halves - mean) > 1e-12 * abs(mean)
    noise = device.noise(expected)(0, 0, ("result", 0))
    assert abs(in_halves - mean) <= GROWTH * noise.largest
    assert noise.largest < 1e-15


def test_only_what_is_added_up_moves() -> None:
    _, builder, rows = near_one()
    square = builder.emit(MatMul(False, True), rows, rows)
    assert added_up(square) == (0, 1)
    assert added_up(builder.emit(ReduceMean(False, (0,)), rows)) == (0,)
    for node in (rows, builder.emit(Sub(), rows, rows), builder.emit(ReduceMax(False, (0,)), rows)):
        assert added_up(node) == ()


def test_copies_of_a_program_move_too() -> None:
    """Ranks that go different ways run copies of one device's program."""
    graph, builder, rows = near_one()
    graph.results = [builder.emit(ReduceMean(False, (0,)), rows)]
    move = Movement(graph, {}, 1.0)
    for node in (graph.nodes[-1], copied_region(graph).nodes[-1]):
        array = np.full((48, 24), 0.3)
        (moved,) = move.operands(node, [array])
        assert 0 < np.abs(moved - array).max() < 1e-14


@pytest.mark.parametrize(
    ("values", "dtype", "exact"),
    [
        ([0, 1, 3], np.float64, True),
        ([0, 1, 2.5], np.float64, False),
        ([0.1], np.float32, False),
        ([0.1], ml_dtypes.bfloat16, True),
        ([7], np.int64, True),
    ],
)
def test_whole_numbers_have_one_sum(values: list[float], dtype: Any, exact: bool) -> None:
    """So that counts, of which places are made, stay what they are."""
    assert is_exact(np.array(values, dtype)) is exact
