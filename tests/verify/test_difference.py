"""How far values may be apart that ranks, one device and judges compute."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.verify.difference import compare

DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_errors_are_no_difference_and_more_is(dtype: str) -> None:
    """Also of complex numbers, whose real and imaginary parts are rounded alike."""
    values = np.arange(1, 9).astype(dtype) * (1 + 1j if dtype.startswith("complex") else 1)
    step = np.finfo(dtype).eps
    assert compare("operator", "it", values, (values * (1 + step)).astype(dtype), 0.0).same
    assert not compare("operator", "it", values, (values * (1 + 1e3 * step ** 0.75)).astype(dtype), 0.0).same


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_parameter_is_held_to_its_change(dtype: str) -> None:
    before = np.full(4, 1000, dtype)
    after, other = (before + np.full(4, change, dtype) for change in (0.25, 0.5))
    assert compare("parameter", "w", after, after, 0.0, before=before).same
    assert not compare("parameter", "w", after, other, 1e-3, before=before).same
