"""Cells that are recomputed for gradients read what their parameters held, though they overwrite them in every turn."""

from __future__ import annotations

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops


class Counting(nn.Cell):
    """Multiplies by what it counts; casts give the gradient something to make again of the count alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.full(3, 0.5, np.float32)), name="w")
        self.count = Parameter(Tensor(np.ones(3, np.float32)), name="count", requires_grad=False)

    def construct(self, x: Any) -> Any:
        y = ops.tanh(x * self.w * ops.exp(self.count.astype(ms.float64).astype(ms.float32)))
        ops.assign_add(self.count, ops.ones_like(self.count) * 0.25)
        return y


class Turning(nn.Cell):
    """As many turns as a tensor says."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.inner = Counting()
        if recomputes:
            self.inner.recompute()

    def construct(self, x: Any, turns: Any) -> Any:
        i = turns * 0
        while i < turns:
            x = self.inner(x) + x
            i = i + 1
        return x.sum()


def gradient(recomputes: bool) -> Any:
    net = Turning(recomputes)
    _, (found,) = ops.value_and_grad(net, None, [net.inner.w])(Tensor(np.ones(3, np.float32)), Tensor(3, ms.int32))
    return found.asnumpy()


def test_a_turn_is_not_recomputed_from_what_later_turns_wrote() -> None:
    np.testing.assert_allclose(gradient(True), gradient(False), rtol=1e-6)
