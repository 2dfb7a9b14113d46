"""join_slices: sums of the gradients of slices that make up a tensor, and of those that do not."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import load_operators
from mspc.ops.tensor.slicing import StridedSliceGrad
from mspc.passes.fusion.join_slices import JoinSlices
from tests.interpret import left_behind

load_operators()

SHAPE = (2, 6, 3)


def joined(*slices: tuple[slice | int | None, ...], besides: int = 0) -> list[str]:
    """The operators behind the pass for a sum of the gradients of slices of a tensor, and of other tensors; the numbers
    are checked to be the same."""
    graph = Graph("net")
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    b = Builder(graph)
    terms = []
    for number, entries in enumerate(slices):
        given = [slice(e, e + 1, 1) if isinstance(e, int) else e for e in entries]
        fields = {
            "begin": tuple(e.start for e in given), "end": tuple(e.stop for e in given),
            "strides": tuple(e.step or 1 for e in given),
            "shrink_axis_mask": sum(1 << i for i, e in enumerate(entries) if isinstance(e, int)),
        }  # fmt: skip
        shape = tuple(len(range(*s.indices(n))) for s, n, e in zip(given, SHAPE, entries, strict=True)
                      if not isinstance(e, int))  # fmt: skip
        dout = Parameter(f"d{number}", TensorType(FLOAT32, shape))
        graph.parameters.append(dout)
        terms.append(b.emit(StridedSliceGrad(**fields, shape=SHAPE), dout))
    others = [Parameter(f"x{i}", TensorType(FLOAT32, SHAPE)) for i in range(besides)]
    graph.parameters += others
    graph.results = [b.emit(AddN(), *terms, *others)]
    return left_behind(JoinSlices(), graph)


TWO, THREE = slice(0, 2), slice(0, 3)


def test_steps_of_a_sequence_are_stacked() -> None:
    whole = slice(0, 3)
    assert joined(*[(slice(0, 2), i, whole) for i in (3, 1, 0, 5, 4, 2)]) == ["Concat"]


@pytest.mark.parametrize("besides", [0, 1, 2])
def test_parts_of_any_length_are_joined_and_others_are_added(besides: int) -> None:
    parts = [(slice(0, 2), slice(a, b), slice(0, 3)) for a, b in ((0, 1), (1, 4), (4, 6))]
    assert joined(*parts, besides=besides) == (["Concat", "AddN"] if besides else ["Concat"])


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(TWO, slice(0, 3), THREE), (TWO, slice(4, 6), THREE)], id="a gap"),
        pytest.param([(TWO, slice(0, 4), THREE), (TWO, slice(3, 6), THREE)], id="overlap"),
        pytest.param([(TWO, slice(0, 6, 2), THREE), (TWO, slice(1, 6, 2), THREE)], id="steps"),
        pytest.param([(slice(0, 1), slice(0, 3), THREE), (slice(1, 2), slice(3, 6), THREE)], id="corners"),
        pytest.param([(TWO, slice(0, 3), THREE), (slice(0, 1), slice(0, 6), THREE)], id="two ways"),
    ],
)
def test_what_does_not_make_up_the_tensor_is_added(parts: list[tuple[slice, ...]]) -> None:
    assert joined(*parts) == ["StridedSliceGrad", "StridedSliceGrad", "AddN"]
