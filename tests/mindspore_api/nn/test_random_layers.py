"""Layers that draw, under the names of operators, functions and cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, ops


@pytest.mark.parametrize(("operator", "shape"), [(ops.Dropout2D, (16, 32, 3, 2)), (ops.Dropout3D, (16, 32, 2, 3, 2))])
def test_channels_are_dropped_as_a_whole(operator: Any, shape: tuple[int, ...]) -> None:
    out, mask = (t.asnumpy() for t in operator(0.75)(Tensor(np.full(shape, 3.0, np.float32))))
    assert out.shape == mask.shape == shape
    assert mask.dtype == np.bool_
    channels = mask.reshape(16, 32, -1)
    assert (channels == channels[:, :, :1]).all()
    assert 0.65 < channels[:, :, 0].mean() < 0.85
    np.testing.assert_array_equal(out, np.where(mask, np.float32(4.0), np.float32(0.0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.Dropout2D()(ops.ones((2, 3, 4))), "Dropout2D: the input of shape (2, 3, 4) must have 4"),
        (lambda: ops.Dropout3D(0.0)(ops.ones((2, 3, 1, 1, 1))), "Dropout3D: keep_prob is 0.0, not above 0"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert message in str(refused.value)
