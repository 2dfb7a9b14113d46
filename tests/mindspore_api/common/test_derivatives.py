"""Derivatives of functions with tensors that they capture."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc import Tensor, ops, value_and_grad

X = np.array([0.5, -1.0, 2.0])
Y = np.array([1.0, 3.0, -0.5])


def product(x: Any, y: Any) -> Any:
    return x * x * y


def test_the_gradient_by_tensors_that_a_network_captures() -> None:
    """They are no inputs of the graph, and different: their values must not be folded away first."""
    x, y = Tensor(X), Tensor(Y)

    def weighted(sens: Any) -> Any:
        dx, dy = ops.GradOperation(get_all=True, sens_param=True)(product)(x, y, sens)
        return (dx * x).sum() + (dy * x).sum()

    found = value_and_grad(weighted)(Tensor(np.ones(3)))
    expected = 2 * X * Y * X + X * X * X
    np.testing.assert_allclose(found[0].asnumpy(), expected.sum())
    np.testing.assert_allclose(found[1].asnumpy(), expected)
