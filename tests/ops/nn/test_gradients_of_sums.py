"""The gradient that a sum hands an activation is one number for all elements, and is repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from tests.mindspore_api.nn.training import Training

VALUES = np.random.default_rng(0).uniform(-2, 2, (8, 4))


class Step(nn.Cell):
    """The gradient of the sum of an activation in its input, with weights of 1 or without."""

    def __init__(self, activation: Any, weights: Any) -> None:
        super().__init__()
        self.w, self.activation, self.weights = Parameter(Tensor(VALUES), "w"), activation, weights
        self.both = ops.value_and_grad(self.whole, None, [self.w])

    def whole(self, x: Any) -> Any:
        found = self.activation(self.w)
        return found.sum() if self.weights is None else (found * self.weights).sum()

    def construct(self, x: Any) -> Any:
        _, gradients = self.both(x)
        return gradients[0] + 0.0


NAMES = """relu relu6 sigmoid tanh silu gelu fast_gelu elu hardswish hardsigmoid softplus mish leaky_relu softmax
log_softmax selu hardshrink softshrink celu logsigmoid""".split()


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_sum(name: str) -> None:
    x = [(np.zeros(8, np.float32),)]
    ones = Tensor(np.random.default_rng(1).uniform(1, 1, (8, 4)))
    found, expected = (Training(Step(getattr(ops, name), w), [(8,)]).run(x)[0] for w in (None, ones))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
