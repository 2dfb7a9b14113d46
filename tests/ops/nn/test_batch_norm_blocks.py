"""BatchNorm's kernels on images of which the cache holds some channels only, against the formula on entire arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ops.nn import batch_norm
from mspc.ops.nn.batch_norm import normalised_by_own, own_gradients

EPSILON = 1e-3
SHAPES = [(16, 40, 16, 16), (3, 7, 70, 70), (300, 500), (1, 300, 3), (70000, 2)]
"""The third has one element of a channel in an image; the second and the last more than a block in one channel."""


def formula(x: Any, gamma: Any, beta: Any, dout: Any) -> tuple[Any, ...]:
    axes, row = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    count = x.size // x.shape[1]
    mean, variance = x.mean(axes), x.var(axes)
    inverse = 1 / np.sqrt(variance + EPSILON)
    apart = (x - mean.reshape(row)) * inverse.reshape(row)
    dgamma, dbeta = (dout * apart).sum(axes), dout.sum(axes)
    dx = dout - (dbeta.reshape(row) + apart * dgamma.reshape(row)) / count
    y = apart * gamma.reshape(row) + beta.reshape(row)
    return y, mean, variance, dx * (gamma * inverse).reshape(row), dgamma, dbeta


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    x, dout = random.standard_normal((2, *shape)) + 3
    gamma, beta = random.standard_normal((2, shape[1]))
    expected = formula(x, gamma, beta, dout)
    found: list[list[Any]] = []
    for threads in (1, 3):
        monkeypatch.setattr(batch_norm, "thread_count", lambda threads=threads: threads)
        y, mean, variance = normalised_by_own(np, x, EPSILON, gamma, beta)
        gradients = own_gradients(np, dout, x, gamma, mean, variance, EPSILON)
        found.append([y, mean, variance, *gradients])
    for one, three, wanted in zip(*found, expected, strict=True):
        np.testing.assert_array_equal(one, three)  # the number of threads changes no bit
        np.testing.assert_allclose(one, wanted, atol=1e-9 * np.abs(wanted).max())
