"""Gradients that a network takes within itself, or stops there: sharded over ranks all is as on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import ops
from tests.mindspore_api.nn.training import Training, floats

X, W = floats(0, 10, 4), floats(1, 4, 4)


def inner(p: Any, q: Any) -> Any:
    return (ops.tanh(p) @ q).sum()


def held(x: Any, w: Any) -> Any:
    dx, dw = ms.grad(inner, (0, 1))(x, w)
    return (ops.stop_gradient(dx) * x).sum() + (ops.stop_gradient(ops.stop_gradient(dw)) * dw).sum()


def ordered(x: Any, w: Any) -> Any:
    dx, dw = ms.grad(inner, (0, 1))(x, w)
    pair = (ops.depend(dw, dx), dx)
    return ((x @ pair[0]) * pair[1]).sum()


def step_of_held(x: Any, w: Any) -> Any:
    return ms.value_and_grad(held, (0, 1))(x, w)


def step_of_ordered(x: Any, w: Any) -> Any:
    return ms.value_and_grad(ordered, (0, 1))(x, w)


@pytest.mark.parametrize("step", [step_of_held, step_of_ordered])
@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (5, {"mode": "semi_auto_parallel"}),
        (4, {"mode": "auto_parallel"}),
        (10, {"mode": "auto_parallel", "search_mode": "dynamic_programming"}),
    ],
)
def test_a_gradient_within_a_network(step: Any, ranks: int, settings: dict[str, str]) -> None:
    def run(ranks: int, **settings: Any) -> list[np.ndarray]:
        loss, grads = Training(step, [X.shape, W.shape], ranks, **settings).run([(X, W)])[0]
        return [loss, *grads]

    for found, alone in zip(run(ranks, **settings), run(1), strict=True):
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("search_mode", ["dynamic_programming", "recursive_programming"])
def test_partial_sums_end_where_gradients_do(search_mode: str) -> None:
    def network(x: Any, w: Any) -> Any:
        return ops.stop_gradient(ops.matmul(x, w)) * 0.5

    x, w = floats(2, 2, 12), floats(3, 12, 20)
    found = Training(network, [x.shape, w.shape], 6, "auto_parallel", search_mode=search_mode).run([(x, w)])[0]
    np.testing.assert_allclose(found, x @ w * 0.5, rtol=1e-5, atol=1e-5)
