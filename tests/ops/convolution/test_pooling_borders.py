"""Pooling at the borders of an image: padding is no place, so no gradient is lost to it."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.convolution.pooling import AvgPool3D, MaxPool, MaxPool3D, MaxPoolGrad
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


def test_three_dimensions_take_more_padding_on_one_side_than_half_a_window() -> None:
    x = np.arange(1.0, 17.0).reshape(1, 1, 16, 1, 1)
    given = {"kernel_size": (4, 1, 1), "strides": (5, 1, 1), "pad_mode": "pad", "pad": (3, 0, 0, 0, 0, 0)}
    for pool, expected in ((MaxPool3D, [1, 6, 11, 16]), (AvgPool3D, [1 / 4, (3 + 4 + 5 + 6) / 4, 9.5, 14.5])):
        pool(**given).infer(TensorType(FLOAT64, x.shape))
        np.testing.assert_array_equal(pool(**given).run(BACKEND, x).ravel(), expected)


def test_windows_hold_more_than_padding() -> None:
    pool = MaxPool3D(kernel_size=4, strides=5, pad_mode="pad", pad=(0, 0, 4, 0, 0, 0))
    with pytest.raises(MspcError) as raised:
        pool.infer(TensorType(FLOAT64, (1, 1, 8, 8, 8)))
    assert raised.value.message == (
        "MaxPool3D: paddings of 4 and 0 along dimension 3 must be smaller than the window's 4, both together at most "
        "as large"
    )
