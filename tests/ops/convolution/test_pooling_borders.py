"""Pooling at the borders of an image: padding is no place, so no gradient is lost to it."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ops.convolution.pooling import MaxPool, MaxPoolGrad
from tests.ops.backend import BACKEND


@pytest.mark.parametrize("value", [-np.inf, np.nan, -3.0])
def test_a_window_of_one_value_hands_its_gradient_to_its_first_place(value: float) -> None:
    x = np.full((2, 3, 4, 4), value)
    pool = MaxPool(kernel_size=3, strides=2, pad_mode="pad", pad=1)
    out = pool.run(BACKEND, x)
    np.testing.assert_array_equal(out, np.full((2, 3, 2, 2), value))
    dout = np.arange(1.0, 25.0).reshape(out.shape)
    found = MaxPoolGrad(**pool.attributes()).run(BACKEND, x, out, dout)
    expected = np.zeros_like(x)
    expected[:, :, :2, :2] = dout  # windows begin at places -1 and 1
    np.testing.assert_array_equal(found, expected)
