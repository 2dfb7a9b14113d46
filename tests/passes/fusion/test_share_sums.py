"""share_sums: random sums of products compute the same, and the gradients of a group norm are two sums over places."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Value
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion.share_sums import ShareSums
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
    """Of a group norm's shift and scale, and two means of groups that the image's needs."""
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
