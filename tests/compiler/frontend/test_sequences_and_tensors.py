"""Lists and tuples beside tensors, and Python's functions over the rows of one."""

# ruff: noqa: RUF005  tensors are added to lists, which does not join them

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor
from mspc.ir.diagnostics import MspcError

X = np.array([1, 5], np.int32)
CASES: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda x: x + (1, 2), X + [1, 2]),
    (lambda x: [1, 2] - x, [1, 2] - X),
    (lambda x: x * [1.5, 2.5], np.array([1.5, 12.5], np.float32)),
    (lambda x: x / (x[0], 3), np.array([1, 5 / 3], np.float32)),
    (lambda x: x // (2, 3), X // [2, 3]),
    (lambda x: (7, 8) % x, [7, 8] % X),
    (lambda x: x + ((1, 2), (3, 4)), X + [[1, 2], [3, 4]]),
    (lambda x: x + (x, x * 2), np.stack([X + X, X * 3])),
    (lambda x: Tensor([1, 2], ms.int32) + (1, 2) + x, X + [2, 4]),
    (lambda x: sum(x), np.array(6)),
    (lambda x: sum(x + ((1, 2), (3, 4)), x), X + [6, 16]),
    (lambda x: max(x) - min(x), np.array(4, np.int32)),
    (lambda x: sum((x, x)), X * 2),
]


@pytest.mark.parametrize(("function", "wanted"), CASES)
def test_what_they_give(function: Callable[[Any], Any], wanted: Any) -> None:
    found = ms.jit(function)(Tensor(X)).asnumpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert found.dtype.kind == wanted.dtype.kind


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + ("a", 1), "'a'"),
        (lambda x: x + ((1, 2), 3), "Stack"),
        (lambda x: max(x + ((1, 2), (3, 4))), r"max\(\) of one tensor"),
        (lambda x: x + (), "tuple"),
    ],
)
def test_mistakes(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        ms.jit(function)(Tensor(X))
