"""share_sums: random sums of products compute the same, and the gradients of a group norm are two sums over places."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.ir.graph import Builder, Graph, Parameter, Value
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import load_operators
from mspc.ops.tensor.slicing import StridedSliceGrad
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion.join_slices import JoinSlices
from mspc.passes.fusion.share_sums import ShareSums
from tests.interpret import left_behind
from tests.passes.fusion.test_fuse_elementwise import fused, names, new_graph, op, run
from tests.shares import share_of

IMAGES, LENGTHS, GROUPS, EACH = 3, (4, 5), 2, 3
CHANNELS = GROUPS * EACH
IMAGE = (IMAGES, *LENGTHS, CHANNELS)
PARTED = (IMAGES, *LENGTHS, GROUPS, EACH)
SCALES: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    IMAGE: ((CHANNELS,), (IMAGES, 1, 1, CHANNELS), (1,), (LENGTHS[1], 1), (IMAGES, 1, 1, 1)),
    PARTED: ((GROUPS, EACH), (IMAGES, 1, 1, GROUPS, 1), (EACH,), (LENGTHS[0], 1, 1, 1)),
}
AXES = ((0, 1, 2), (1, 2), (2,), (0, 1), (1, 2, 3), (0,), ())


def random_sums(seed: int) -> Graph:
    """Sums along some dimensions of products of the same images by factors of all shapes, in two shapes."""
    draw = random.Random(seed)
    shapes = [IMAGE, *{shape for each in SCALES.values() for shape in each}]
    graph, b, (x, y, *scales) = new_graph(
        x=("input", IMAGE), y=("input", PARTED), **{f"s{i}": ("parameter", shape) for i, shape in enumerate(shapes)}
    )
    images: list[Value] = [x, y, b.emit(op("Tanh"), x)]
    for _ in range(draw.randint(4, 12)):
        one = draw.choice(images)
        shape = one.shape
        kind = draw.randrange(5)
        if kind == 0:
            images.append(b.emit(op("Reshape", shape=PARTED if shape == IMAGE else IMAGE), one))
        elif kind == 1:
            images.append(b.emit(op("Mul"), one, draw.choice([each for each in images if each.shape == shape])))
        else:
            fitting = [each for each in scales if each.shape in SCALES[shape]]
            images.append(b.emit(op("Mul"), one, draw.choice(fitting)))
        reduced = op(draw.choice(("ReduceSum", "ReduceMean")), axis=draw.choice(AXES), keep_dims=draw.random() < 0.5)
        graph.results.append(b.emit(reduced, draw.choice(images)))
    return graph


@settings(max_examples=share_of(150), deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_sums_compute_the_same(seed: int) -> None:
    expected = run(fused(random_sums(seed), "execute"))
    graph = run_passes(random_sums(seed), parse_passes("share_sums"))
    graph.verify()
    found = run(fused(graph, "fuse_rows,fuse_elementwise,execute"))
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1, float(np.abs(a).max())))


def test_many_of_these_graphs_share_sums() -> None:
    assert sum(ShareSums().run(random_sums(seed)) for seed in range(40)) > 8


def gradients(b: Builder, dy: Value, apart: Value, inverse: Value, gamma: Value) -> list[Value]:
    """The shift and scale of a group norm, and two means of groups that the image's needs."""
    shift = b.emit(op("ReduceSum", axis=(0, 1, 2)), dy)
    hat = b.emit(op("Mul"), apart, inverse)
    scale = b.emit(op("ReduceSum", axis=(0, 1, 2)), b.emit(op("Mul"), dy, b.emit(op("Reshape", shape=IMAGE), hat)))
    g = b.emit(op("Reshape", shape=PARTED), b.emit(op("Mul"), dy, gamma))
    means = [b.emit(op("ReduceMean", axis=(1, 2), keep_dims=True), each) for each in (g, b.emit(op("Mul"), g, hat))]
    return [shift, scale, *means]


def test_the_gradients_of_a_group_norm_are_two_sums_over_places() -> None:
    """Beside them are sums over the images, of little; a kernel adds both up in one pass."""
    graph, b, (dy, apart, inverse, gamma) = new_graph(
        dy=("input", IMAGE), apart=("input", PARTED), inverse=("input", (IMAGES, 1, 1, GROUPS, 1)),
        gamma=("parameter", (CHANNELS,)),
    )  # fmt: skip
    hidden = b.emit(op("Neg"), dy)
    graph.results = gradients(b, hidden, apart, inverse, gamma)
    expected = run(graph)
    graph = run_passes(graph, parse_passes("share_sums"))
    sums = [node for node in graph.nodes if node.op.name in ("ReduceSum", "ReduceMean")]
    assert sum(node.inputs[0].tensor_type.size == dy.tensor_type.size for node in sums) == 2
    for a, c in zip(expected, run(graph), strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)
    kernels = fused(graph, "fuse_rows,fuse_elementwise")
    assert sum(kernels_read(kernels, "dy")) == 1, names(kernels)


def kernels_read(graph: Graph, name: str) -> list[bool]:
    """For every node whether it reads a parameter."""
    return [any(getattr(value, "name", "") == name for value in node.inputs) for node in graph.nodes]


@pytest.mark.parametrize("reason", ["rows", "few", "varies", "updated"])
def test_sums_that_stay(reason: str) -> None:
    graph, b, (x, s, c) = new_graph(
        x=("parameter", IMAGE), s=("parameter", (LENGTHS[1], 1)), c=("parameter", (CHANNELS,))
    )
    axes = {"rows": (3,), "few": (0,)}.get(reason, (1, 2))
    first = b.emit(op("ReduceSum", axis=axes), x)
    other: Value = x
    if reason == "updated":
        other = b.emit(op("Assign"), x, b.emit(op("Neg"), x))
    scaled = b.emit(op("Mul"), other, s if reason in ("varies", "rows") else c)
    graph.results = [first, b.emit(op("ReduceSum", axis=axes), scaled)]
    before = names(graph)
    assert names(run_passes(graph, parse_passes("share_sums"))) == before


# join_slices: sums of the gradients of slices that make up a tensor, and of those that do not.


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
        dout = Parameter(f"d{number}", TensorType(FLOAT32, np.empty(SHAPE)[entries].shape))
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
