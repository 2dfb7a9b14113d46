"""What is made up for a network that brings no inputs."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Parameter
from mspc.ir.types import BOOL, FLOAT32, INT32, INT64, TensorType
from mspc.ops.math.arithmetic import Mul, NotEqual, Select
from mspc.ops.tensor.embedding import Gather
from mspc.ops.tensor.reshape import Cast, ExpandDims
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


CLASSES = TensorType(INT64, (8, 3))


def labels(ignored: int, reads_class: bool = False) -> Graph:
    """A graph that counts no label of one number, and looks another up unless that is replaced first."""
    graph = Graph("net")
    (given,) = graph.parameters = [Parameter("labels", CLASSES, "input")]
    b = Builder(graph)
    counts = b.emit(NotEqual(), b.emit(Cast(dst_type=INT32), given), Constant(ignored, INT32))
    table = Parameter("table", TensorType(FLOAT32, (5, 2)), "parameter")
    graph.parameters.append(table)
    found = b.emit(Gather(), table, given if reads_class else b.emit(Select(), counts, given, Constant(0, INT64)))
    graph.results = [counts, found]
    return graph


@pytest.mark.parametrize(
    ("ignored", "reads_class", "wanted"), [(-100, False, True), (-100, True, False), (3, False, False)]
)
def test_labels_that_a_graph_ignores_are_made(ignored: int, reads_class: bool, wanted: bool) -> None:
    made = made_inputs(labels(ignored, reads_class), [CLASSES], [], 0, 3, hidden=True)["labels"]
    for array in made.arrays:
        assert (array < 0).sum() == (6 if wanted else 0)
    assert ("every fourth -100" in made.said) == wanted
    assert "every fourth" not in made_inputs(labels(ignored), [CLASSES], [], 0, 3)["labels"].said


def test_rows_of_a_mask_are_of_one_kind_in_the_second_step() -> None:
    graph = Graph("net")
    graph.parameters = [Parameter("mask", TensorType(BOOL, (4, 32)), "input")]
    first, second, third = made_inputs(graph, [TensorType(BOOL, (4, 32))], [], 0, 3, hidden=True)["mask"].arrays
    assert not second[0].any()
    assert second[1].all()
    for array in (first, third):
        assert array.any(1).all()
        assert not array.all(1).any()
