"""Gradients with respect to integers: of their type, by the same rules as those of floats, as MindSpore 2.10 has them.

The expected values were read off MindSpore 2.10.0 in both modes, but for `quarter`, where it hands back Float32: here a
gradient has the type of what it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops

I, J = Tensor(np.array([3, 2]), ms.int32), Tensor(np.array([5, 7]), ms.int32)  # noqa: E741
F = Tensor(np.array([1.5, 2.5]), ms.float32)
B = Tensor(np.array([True, False]))


def doubled(x: Any) -> Any:
    return (x * 2).sum()


def product(x: Any, y: Any) -> Any:
    return (x * y).sum()


def widened(x: Any) -> Any:
    return (x.astype(ms.float32) * 1.7).sum()


def quarter(x: Any) -> Any:
    return x / 4


def chosen(x: Any, i: Any) -> Any:
    return ops.gather(x, i, 0).sum()


def hot(x: Any) -> Any:
    return ops.one_hot(x, 4, Tensor(1.0), Tensor(0.0)).sum()


@pytest.mark.parametrize(("function", "arguments", "expected"), [
    (doubled, (I,), [[2, 2]]),
    (lambda x: x * x, (I,), [[6, 4]]),
    (lambda x: x + x, (Tensor(np.array([3, 2]), ms.int8),), [[2, 2]]),
    (lambda x: -x, (I,), [[-1, -1]]),
    (lambda x: ops.abs(x), (I,), [[1, 1]]),
    (lambda x: ops.maximum(x, 2), (I,), [[1, 0]]),
    (lambda x: ops.concat((x, x))[1:3], (I,), [[1, 1]]),
    (lambda x: ops.matmul(x, x), (Tensor(np.array([[3, 2], [1, 4]]), ms.int32),), [[[9, 9], [11, 11]]]),
    (product, (I, F), [[1, 2], [3.0, 2.0]]),
    (product, (I, J), [[5, 7], [3, 2]]),
    (widened, (Tensor(np.array([3, 2]), ms.int64),), [[1, 1]]),
    (quarter, (I,), [[0, 0]]),
    (lambda x: x // 2, (I,), [[0, 0]]),
    (lambda x: x > 2, (I,), [[0, 0]]),
    (lambda x: ops.argmax(x), (I,), [[0, 0]]),
    (hot, (I,), [[0, 0]]),
    (lambda x: ops.stop_gradient(x) * 2, (I,), [[0, 0]]),
    (chosen, (F, Tensor(np.array([0, 1]), ms.int32)), [[1.0, 1.0], [0, 0]]),
    (lambda x: x.astype(ms.float32).sum(), (B,), [[True, True]]),
    (lambda x: ops.logical_not(x), (B,), [[False, False]]),
    (lambda x, y: (x * 2, y * 3), (I, F), [[2, 2], [3.0, 3.0]]),
])  # fmt: skip
def test_values_and_types(function: Callable[..., Any], arguments: tuple[Tensor, ...], expected: list[Any]) -> None:
    found = ms.grad(function, tuple(range(len(arguments))))(*arguments)
    for gradient, argument, value in zip(found, arguments, expected, strict=True):
        assert gradient.dtype == argument.dtype
        np.testing.assert_array_equal(gradient.asnumpy(), np.array(value))


def test_all_arguments_are_those_that_are_tensors() -> None:
    found = ops.GradOperation(get_all=True)(lambda x, y, z: x * y * z)(F, I, 4)
    assert [each.dtype for each in found] == [ms.float32, ms.int32]
    np.testing.assert_array_equal(found[0].asnumpy(), [12, 8])
    np.testing.assert_array_equal(found[1].asnumpy(), [6, 10])


def test_a_sensitivity_and_the_value() -> None:
    found = ops.GradOperation(sens_param=True)(lambda x: x * x)(I, J)
    np.testing.assert_array_equal(found.asnumpy(), [30, 28])
    value, gradient = ms.value_and_grad(lambda x: x * x)(I)
    np.testing.assert_array_equal(value.asnumpy(), [9, 4])
    np.testing.assert_array_equal(gradient.asnumpy(), [6, 4])


def test_floats_alone_get_nothing_through_integers() -> None:
    found = ms.grad(lambda x: (x.astype(ms.int32) * x).sum())(F)
    np.testing.assert_array_equal(found.asnumpy(), [1, 2])
