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
