"""Operators of numbers alone refuse Bool, in a network and outside of one; others keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops

X, Y = Tensor(np.array([True, False, True])), Tensor(np.array([True, True, False]))
FIRST, ONE = Tensor([[0]]), Tensor([True])
REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "Sub": lambda x, y: ops.sub(x, y),
    "SquaredDifference": lambda x, y: ops.SquaredDifference()(x, y),
    "Sign": lambda x, y: ops.sign(x),
    "Square": lambda x, y: ops.square(x),
    "Pow": lambda x, y: ops.pow(x, y),
    "FloorDiv": lambda x, y: ops.floor_div(x, y),
    "FloorMod": lambda x, y: ops.remainder(x, y),
    "Mod": lambda x, y: ops.fmod(x, y),
    "TruncateDiv": lambda x, y: ops.TruncateDiv()(x, y),
    "TruncateMod": lambda x, y: ops.TruncateMod()(x, y),
    "Conj": lambda x, y: ops.conj(x),
    "CumSum": lambda x, y: ops.cumsum(x, 0),
    "TensorScatterSub": lambda x, y: ops.tensor_scatter_sub(x, FIRST, ONE),
}


class Net(nn.Cell):
    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.call = call

    def construct(self, x: Any, y: Any) -> Any:
        return self.call(x, y)


@pytest.mark.parametrize("name", REFUSED)
def test_the_message(name: str) -> None:
    for call in (REFUSED[name], Net(REFUSED[name])):
        with pytest.raises(TypeError, match=rf"{name}: input 0 is Bool, not a number"):
            call(X, Y)


def test_what_stays_bool() -> None:
    for call in (lambda x, y: ops.relu(x), lambda x, y: ops.maximum(x, y), lambda x, y: ops.mul(x, y)):
        inside, outside = Net(call)(X, Y), call(X, Y)
        assert inside.dtype == outside.dtype == ms.bool_
        np.testing.assert_array_equal(inside.asnumpy(), outside.asnumpy())
