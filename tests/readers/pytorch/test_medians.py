"""Medians of all elements: which of them have its gradient, also beside infinite ones."""

from __future__ import annotations

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.readers.pytorch.kinds.reductions import median_of_all


@pytest.mark.parametrize(
    ("given", "median", "shares"),
    [([1, 2, 2, 4], 2, [0, 0.5, 0.5, 0]), ([np.inf, 1, 2], 2, [0, 0, 1]), ([-np.inf, -np.inf, 2], -np.inf, None)],
)
def test_what_is_as_large_shares_the_gradient(given: list[float], median: float, shares: list[float] | None) -> None:
    value, gradient = mspc.value_and_grad(median_of_all)(Tensor(np.array(given, np.float32)))
    assert float(value) == median
    assert shares is None or gradient.asnumpy().tolist() == shares
