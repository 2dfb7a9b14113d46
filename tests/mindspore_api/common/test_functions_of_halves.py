"""Squares of large numbers in Float16 and BFloat16 are summed in Float32: against Float64, in a network too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint, nn, ops

X = (np.random.default_rng(0).uniform(-1, 1, (4, 32)) * 6000).astype(np.float16)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "std": lambda x: ops.std(x, 1),
    "mint.std": lambda x: mint.std(x, dim=1),
    "method std": lambda x: x.std(1, 1),
    "norm": lambda x: ops.norm(x, dim=1),
    "norm of third powers": lambda x: mint.norm(x, 3, 1),
    "cosine_similarity": lambda x: ops.cosine_similarity(x, x * 0.5, 1),
    "renorm": lambda x: ops.renorm(x, 2, 0, 1.0),
    "clip_by_global_norm": lambda x: ops.clip_by_global_norm([x, x], 1.0)[1],
    "variance of tens": lambda x: ops.var(x * 0.04, 1),
    "matmul of a vector": lambda x: mint.matmul((x * 1e-4)[0], (x * 1e-4).expand_dims(0).swapaxes(1, 2)),
    "operator @": lambda x: (x * 1e-4) @ (x * 1e-4).swapaxes(0, 1),
}


class Net(nn.Cell):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def construct(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_of_squares_do_not_overflow(name: str, dtype: Any) -> None:
    x = Tensor(X).astype(dtype)
    expected = FUNCTIONS[name](x.astype(ms.float64)).asnumpy()
    tolerance = 4e-3 if dtype == ms.float16 else 3e-2
    for found in (FUNCTIONS[name](x), Net(FUNCTIONS[name])(x)):
        assert found.dtype == dtype
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found.astype(ms.float64).asnumpy(), expected, rtol=tolerance, atol=tolerance * scale)


def test_gradients_of_a_deviation_are_finite() -> None:
    found = ops.grad(lambda x: ops.std(x, 1).sum())(Tensor(X)).asnumpy()
    expected = ops.grad(lambda x: ops.std(x, 1).sum())(Tensor(X.astype(np.float64))).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-3)
