"""Gradients that are constants, or have constant terms: the numbers of one device; in data-parallel mode the sum of
what every rank's batch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training import Training, floats

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.layout import Layout

SHAPES = {"w": (4, 2), "v": (3,), "row": (1, 4), "s": ()}
X = floats(1, 8, 4)


class Net(nn.Cell):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        for i, (name, shape) in enumerate(SHAPES.items()):
            setattr(self, name, Parameter(Tensor(floats(2 + i, *shape)), name))
        self.form = form

    def construct(self, x: Any) -> Any:
        return self.form(self, x)


class Clipped(nn.Cell):
    """A step whose gradients are scaled together."""

    def __init__(self, net: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net, self.optimizer = net, optimizer
        self.gradient = ms.value_and_grad(net, None, optimizer.parameters)

    def construct(self, x: Any) -> Any:
        loss, gradients = self.gradient(x)
        gradients = ops.clip_by_global_norm(gradients, 0.5)
        return ops.depend(loss, self.optimizer(gradients)), gradients


FORMS = {
    "a term": lambda net, x: ops.reduce_mean(ops.matmul(x, net.w)) + ops.reduce_mean(net.w),
    "two terms": lambda net, x: ops.matmul(x, net.w).sum() + net.w.sum() + net.w.mean() * 2.0,
    "through ReLU": lambda net, x: ops.relu(net.w).sum() + net.w.mean() + ops.matmul(x, net.w).mean(),
    "all of it": lambda net, x: net.w.mean() + net.v.sum() + x.mean(),
    "one scalar twice": lambda net, x: net.s + net.s * 2.0 + x.mean() * net.s,
    "alike": lambda net, x: net.v.mean() + net.s + x.mean(),
    "unstacked": lambda net, x: (ops.Unstack(0)(net.row)[0] * x).sum(),
    "split": lambda net, x: (ops.Split(0, 1)(net.row)[0] * x).sum(),
}


def trained(form: Callable[..., Any], step: Any, batch: np.ndarray, ranks: int, mode: str) -> Training:
    net = Net(form)
    optimizer = nn.Momentum(net.trainable_params(), 1.0, 0.5)
    training = Training(step(net, optimizer), [batch.shape], ranks, mode)
    training.found = training.run([[batch]])  # type: ignore[attr-defined]
    return training


def returning(net: nn.Cell, optimizer: nn.Cell) -> nn.Cell:
    return nn.TrainOneStepCell(net, optimizer, return_grad=True)


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("step", [returning, Clipped])
@pytest.mark.parametrize("name", FORMS)
def test_a_step_equals_one_device(name: str, step: Any, mode: str) -> None:
    one = trained(FORMS[name], step, X, 1, "stand_alone")
    many = trained(FORMS[name], step, X, 2, mode)
    for parameter in SHAPES:
        np.testing.assert_allclose(many.states[0][parameter], one.states[0][parameter], 1e-5, 1e-5)
    (_, expected), (_, found) = one.found[0], many.found[0]  # type: ignore[attr-defined]
    if step is returning:
        assert list(found) == list(SHAPES)
    pairs = zip(*(list(each.values()) if isinstance(each, dict) else each for each in (expected, found)), strict=True)
    for (a, b), value in zip(pairs, many.compiled.graph.results[1:], strict=True):
        mine = a[value.layout.slices_for(0, np.shape(a))] if isinstance(value.layout, Layout) else a
        np.testing.assert_allclose(b, mine, 1e-5, 1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_data_parallel_ranks_add_constants_too(name: str) -> None:
    many = trained(FORMS[name], returning, X, 2, "data_parallel")
    halves = [trained(FORMS[name], returning, half, 1, "stand_alone") for half in np.split(X, 2)]
    for parameter in SHAPES:
        start = many.start[parameter]
        expected = sum(start - half.states[0][parameter] for half in halves)
        np.testing.assert_allclose(start - many.states[0][parameter], expected, 1e-4, 1e-5)
