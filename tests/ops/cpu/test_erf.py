"""The error function, against the C library's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu.erf import erf

GENERATOR = np.random.default_rng(3)


@pytest.mark.parametrize("x", [
    GENERATOR.uniform(-7, 7, 20000), GENERATOR.uniform(-1, 1, 20000), GENERATOR.uniform(-1e-2, 1e-2, 20000),
    10.0 ** GENERATOR.uniform(-300, 1, 20000), (np.arange(-400, 400) + 0.5) / 64,
])  # fmt: skip
def test_three_units_in_the_last_place(x: Any) -> None:
    expected = np.array([math.erf(value) for value in x])
    apart = np.abs(erf(np, x) - expected) / np.spacing(np.abs(expected))
    assert apart.max() <= 3
    assert apart.mean() <= 0.6


def test_what_is_no_ordinary_number() -> None:
    with np.errstate(all="raise"):
        found = erf(np, np.array([[np.nan, np.inf], [-np.inf, 0.0]]))
    np.testing.assert_array_equal(found, [[np.nan, 1.0], [-1.0, 0.0]])
    assert erf(np, np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert erf(np, np.asarray(0.5)).shape == ()
    assert erf(np, np.ones(3, np.float16)).dtype == np.float16
