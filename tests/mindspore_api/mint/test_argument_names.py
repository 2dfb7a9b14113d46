"""Arguments are called and placed as in MindSpore 2.10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint, nn, ops

X = Tensor(np.array([[1.5, -2.0], [3.0, 7.25]], np.float32))
PLACES = Tensor(np.array([[1, 0]]))

CASES: list[tuple[str, Callable[[], Any], Any]] = [
    ("frac", lambda: mint.frac(input=X), [[0.5, 0], [0, 0.25]]),
    ("mv", lambda: mint.mv(input=X, vec=X[0]), [6.25, -10]),
    ("ones", lambda: mint.ones(size=(2,), dtype=ms.float32), [1, 1]),
    ("SiLU", lambda: mint.nn.SiLU(inplace=False)(X * 0), [[0, 0], [0, 0]]),
    ("ReLU6", lambda: mint.nn.ReLU6(inplace=False)(X), [[1.5, 0], [3, 6]]),
    ("ELU", lambda: mint.nn.ELU(2.0, False)(X), [[1.5, -1.7293294], [3, 7.25]]),
    ("Dropout", lambda: mint.nn.Dropout(0.5, False).set_train(False)(X), X.asnumpy()),
    ("true_divide", lambda: ops.true_divide(dividend=X, divisor=X), [[1, 1], [1, 1]]),
    ("PReLU", lambda: nn.PReLU(2, [0.5, 0.25])(X), [[1.5, -0.5], [3, 7.25]]),
    ("gather_d", lambda: ops.gather_d(x=X, dim=0, index=PLACES), [[3, -2]]),
]


@pytest.mark.parametrize(("make", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_arguments_by_name(make: Callable[[], Any], expected: Any) -> None:
    np.testing.assert_allclose(make().asnumpy(), expected, rtol=1e-6)


def test_a_transposed_convolution_is_padded_by_its_third_argument() -> None:
    convolution = ops.Conv2DTranspose(1, 3, "same", stride=2)
    x, weight = (Tensor(np.ones((1, 1, n, n), np.float32)) for n in (2, 3))
    found = convolution(x, weight, (1, 1, 4, 4))
    np.testing.assert_array_equal(found.asnumpy()[0, 0], [[1, 1, 2, 1], [1, 1, 2, 1], [2, 2, 4, 2], [1, 1, 2, 1]])
