"""Erfinv: all digits near 0 and near 1, where the error function hardly changes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mspc import Tensor, ops


@pytest.mark.parametrize("x", [1e-300, 1e-9, 0.1, 0.5, 0.93, 0.935, 0.99, -0.3, -0.999])
def test_it_undoes_the_error_function(x: float) -> None:
    y = float(ops.erfinv(Tensor(np.array(x))).asnumpy())
    assert math.erf(y) == pytest.approx(x, rel=1e-14, abs=0)


@pytest.mark.parametrize("rest", [2.0**-10, 2.0**-30, 2.0**-52])
def test_near_1_it_counts_what_is_left(rest: float) -> None:
    up, down = (float(y) for y in ops.erfinv(Tensor(np.array([1 - rest, rest - 1]))).asnumpy())
    assert math.erfc(up) == pytest.approx(rest, rel=1e-13, abs=0)
    assert down == -up


def test_at_the_ends_and_beyond() -> None:
    x = np.array([0.0, 1.0, -1.0, 1.5, -2.0, np.nan, np.inf])
    with np.errstate(all="raise", under="ignore"):
        found = ops.erfinv(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(found, [0, np.inf, -np.inf, np.nan, np.nan, np.nan, np.nan])
