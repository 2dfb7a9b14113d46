"""Sizes that no tensor can have are a mistake of the line that asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, float32, mint, nn, ops
from mspc.ir.diagnostics import MspcError

X = Tensor(np.ones((2, 3), np.float32))
IDS = Tensor(np.array([0, 1], np.int32))
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "zeros": (lambda: ops.zeros((-1, 3)), "Fill: shape (-1, 3) has a negative size"),
    "zeros of an int": (lambda: ops.zeros(-3), "Fill: shape (-3,) has a negative size"),
    "ones": (lambda: ops.ones((3, -1)), "Fill: shape (3, -1) has a negative size"),
    "full": (lambda: ops.full((-2,), 1.0), "Fill: shape (-2,) has a negative size"),
    "fill": (lambda: ops.fill(float32, (-2,), 1), "Fill: shape (-2,) has a negative size"),
    "Zeros": (lambda: ops.Zeros()((-1, 3), float32), "Zeros: shape (-1, 3) has a negative size"),
    "Ones": (lambda: ops.Ones()((-1, 3), float32), "Ones: shape (-1, 3) has a negative size"),
    "mint": (lambda: mint.zeros((2, -1)), "Fill: shape (2, -1) has a negative size"),
    "eye": (lambda: ops.eye(-1), "Eye: n must not be negative, and is -1"),
    "eye of two": (lambda: ops.eye(3, -2), "Eye: m must not be negative, and is -2"),
    "one_hot": (lambda: ops.one_hot(IDS, -4), "OneHot: depth must not be negative, and is -4"),
    "random": (lambda: ops.UniformReal()((-1, 2)), "UniformReal: shape (-1, 2) has a negative size"),
    "segments": (
        lambda: ops.UnsortedSegmentSum()(X, IDS, -2),
        "UnsortedSegmentSum: num_segments must not be negative, and is -2",
    ),
    "broadcast_to": (
        lambda: ops.broadcast_to(X, (-2, 2, 3)),
        "BroadcastTo: shape (-2, 2, 3) has a negative size, and input 0 has no such dimension",
    ),
    "scatter": (
        lambda: ops.ScatterNd()(Tensor([[0]]), Tensor([1.0]), (-3,)),
        "the result would have the negative size -3 along a dimension",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_negative_sizes_are_named(name):
    call, message = CASES[name]
    with pytest.raises(MspcError) as caught:
        call()
    assert caught.value.message == message
    assert isinstance(caught.value, ValueError)


class Net(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x + ops.zeros((-1, 3))


def test_in_a_network_they_name_the_line():
    with pytest.raises(MspcError) as caught:
        Net()(X)
    assert "Fill: shape (-1, 3) has a negative size" in caught.value.render()
    assert "return x + ops.zeros((-1, 3))" in caught.value.render()


def test_a_size_of_zero_is_none_too_few():
    assert ops.zeros((0, 3)).shape == (0, 3)
    assert ops.eye(0, 2).shape == (0, 2)
