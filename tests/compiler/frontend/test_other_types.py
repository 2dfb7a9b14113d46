"""Values that branches leave in other shapes, types or lengths are used as the one that they are, as Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

CASES: list[Callable[[Any], Any]] = []


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES.append(function)
    return function


@case
def returned(x):
    return x if x.sum() > 0 else x[:1]


@case
def used_and_returned(x):
    y = x.sum() if x.sum() > 0 else x
    z = -y + 1
    return z, {"a": [z * x, 3]}, z > 0


@case
def heavy(x):
    if x.sum() > 0:
        y = ops.exp(x).reshape(1, 2)
    else:
        y = x * x
    return ops.tanh(y).sum() + y.shape[0], y[..., 0]


@case
def types(x):
    if x.sum() > 0:
        x = x.astype(ms.float64) * x.astype(ms.float64)
    return x.mean(), x * 2


@case
def a_number_or_a_tensor(x):
    y = 2.5 if x.sum() > 0 else x.astype(ms.int32)
    return y * 2, x + y


@case
def lists(x):
    y = [1, 2] if x.sum() > 0 else [3, 4, 5]
    return y[1] + y[0] + x, len(y) + x


@case
def tensors_in_lists(x):
    y = [x, x * 2] if x.sum() > 0 else [x + 1, x, x]
    return y[0] + y[-1]


@case
def two_of_them(x):
    y = x if x.sum() > 0 else x[:1]
    z = x[1:] if x[0] > 0 else x
    return y + z


@case
def in_branches_of_branches(x):
    if x.sum() > 0:
        y = x if x[0] > 1 else x[:1]
        z = (y * 2).sum()
    else:
        z = x[1]
    return z


@case
def returns_of_other_structures(x):
    if x.sum() > 0:
        return x * x
    return x, x * x


@case
def calls_of_methods(x):
    y = ops.tanh(x) if x.sum() > 0 else x[:1]
    return y.reshape(-1, 1).sum(0), y.shape, y.dtype == x.dtype


def square(x, by=None):
    return x * x + (0 if by is None else by)


@case
def functions(x):
    y = x if x.sum() > 0 else x[:1]
    return square(y, by=y).sum(), ops.relu(y).max(), isinstance(y, Tensor)


VALUES = ([2.0, 3.0], [-1.0, -2.0], [-1.0, 3.0], [2.0, -3.0], [0.5, 1.0])


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [each for item in value.values() for each in flat(item)]
    if isinstance(value, tuple | list):
        return [each for item in value for each in flat(item)]
    return [np.asarray(value.asnumpy() if isinstance(value, Tensor) else value)]


@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("values", VALUES)
def test_it_is_what_python_gives(function: Callable[[Any], Any], values: list[float]) -> None:
    x = Tensor(np.array(values, np.float32))
    found, wanted = flat(ms.jit(function)(x)), flat(function(x))
    assert [each.shape for each in found] == [each.shape for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(("values", "gradient"), [([2.0, 3.0], [0.5, 1 / 3]), ([0.0, -2.0], [0.0, -4.0])])
def test_gradients_are_those_of_the_way_taken(values: list[float], gradient: list[float]) -> None:
    """The logarithm of what is not there leaves no trace in the gradient."""

    def function(x: Any) -> Any:
        y = x if x.sum() > 0 else x[1:]
        return ops.log(y).sum() if y.shape[0] == 2 else (y * y).sum()

    found = ms.jit(lambda x: ms.grad(function)(x))(Tensor(np.array(values, np.float32)))
    np.testing.assert_allclose(found.asnumpy(), gradient, rtol=1e-6)


class Updates(nn.Cell):
    """A call with such a value updates where it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Parameter(np.zeros((), np.float32), "count")

    def add(self, y: Any) -> Any:
        self.count += y.sum()
        return y

    def construct(self, x: Any) -> Any:
        y = x if x.sum() > 0 else x[:1]
        return self.add(y) * 2


def test_what_is_called_with_it_updates_once() -> None:
    net = Updates()
    for values, result, count in (([2.0, 3.0], [4.0, 6.0], 5.0), ([-1.0, 0.5], [-2.0], 4.0)):
        assert net(Tensor(np.array(values, np.float32))).asnumpy().tolist() == result
        assert net.count.asnumpy() == count
