"""`_no_grad`: what is computed inside is a constant for gradients. MindSpore 2.10 gives the same values in PyNative
mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError

X = Tensor(np.array([1, 2], np.float32))


def of(run: Any) -> list[float]:
    return ms.grad(run)(X).asnumpy().tolist()


@ms._no_grad()
def constant(x):
    return x * x


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = ms.Parameter(Tensor([2.0, 3.0]), name="w")
        self.average = ms.Parameter(Tensor([0.0, 0.0]), name="average", requires_grad=False)

    def construct(self, x):
        y = x * self.w
        with ms._no_grad():
            self.average = self.average * 0.5 + y
            scale = 1 / self.average
        return (y * scale).sum()

    @ms._no_grad()
    def frozen(self, x):
        return x * self.w


def test_values_computed_inside_have_no_gradient() -> None:
    def with_context(x):
        with ms._no_grad():
            y = x * x
            z = [y * 2, x]
        return (z[0] * z[1]).sum()

    def returned(x):
        with ms._no_grad():
            return (x * x).sum()

    def in_loop(x):
        i = Tensor(0)
        total = x
        while i < 2:
            with ms._no_grad():
                factor = total * 2 if total.sum() > 0 else total
            total = total + x * factor
            i += 1
        return total.sum()

    assert of(with_context) == [2, 8]
    assert of(returned) == [0, 0]
    assert of(lambda x: (constant(x) + x * 3).sum()) == [3, 3]
    assert of(lambda x: (ops.relu(x) * x + constant(x)).sum()) == [2, 4]
    # total: x, then x + 2 x², then that and x (2 x + 4 x²)
    assert of(in_loop) == [1 + 2 + 6, 1 + 4 + 20]


def test_calls_inside_and_outside_are_apart() -> None:
    def square(x):
        return (x * x).sum()

    def run(x):
        with ms._no_grad():
            first = square(x)
        return square(x) * 3 + first

    assert of(run) == [6, 12]


def test_cells_and_methods() -> None:
    net = Net()
    of_input, of_weight = ms.grad(net, 0, net.w)(X)
    assert of_input.asnumpy().tolist() == [1, 0.5]
    assert of_weight.asnumpy().tolist() == [0.5, np.float32(1 / 3)]
    assert net.average.asnumpy().tolist() == [2, 6]
    assert of(lambda x: (net.frozen(x) * x).sum()) == [2, 6]
    assert net.frozen(X).asnumpy().tolist() == [2, 6]


def test_gradients_are_refused_inside() -> None:
    def run(x):
        return (x * x).sum()

    def inner(x):
        with ms._no_grad():
            return ms.grad(run)(x)

    with pytest.raises(MspcError, match=r"grad\(\) is called inside _no_grad\(\)"), ms._no_grad():
        ms.grad(run)(X)
    with pytest.raises(MspcError, match=r"grad\(\) is called inside _no_grad\(\)"):
        ms.jit(inner)(X)
    assert of(run) == [2, 4]
    assert ms.common._no_grad is ms._no_grad
