"""Networks, functions and their graphs live as long as the script has them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.mindspore_api import call_handler

X = Tensor(np.ones((4, 8), np.float32))


def training_step() -> tuple[Any, ...]:
    net = nn.Dense(8, 8)
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    step(X, X)
    return net, optimizer, step, net.weight, optimizer.moment1[0]


def step_by_hand() -> tuple[Any, ...]:
    net, loss = nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8)), nn.MSELoss()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)

    def forward(x: Any, y: Any) -> Any:
        return loss(net(x), y)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    for _ in range(2):
        optimizer(gradient(X, X)[1])
    net.set_train(False)
    net(X)
    return net, optimizer, forward, gradient, net[0].weight


def functions() -> tuple[Any, ...]:
    net = nn.Dense(8, 8)

    @ms.jit
    def compiled(x: Any) -> Any:
        return net(x)

    def function(x: Any, cell: Any) -> Any:
        return cell(x).sum()

    compiled(X)
    ms.grad(function)(X, net)
    ms.jit(net.construct)(X)
    return net, compiled, function, net.weight


@pytest.mark.parametrize("made", [training_step, step_by_hand, functions])
def test_a_network_is_gone_with_the_last_reference(made: Callable[[], tuple[Any, ...]]) -> None:
    gone = [weakref.ref(each) for each in made()]
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)
    made()
    before = len(call_handler.current().compiled_calls)
    for _ in range(3):
        made()
        gc.collect()
    assert len(call_handler.current().compiled_calls) == before


def test_a_request_made_again_is_found_again() -> None:
    def function(x: Any) -> Any:
        return (x * x).sum()

    net = nn.Dense(8, 1)
    weights = net.trainable_params()

    def calls() -> list[Any]:
        return [
            ms.grad(function)(X),
            ms.value_and_grad(ms.jit(function))(X)[0],
            ms.value_and_grad(net, 0, weights)(X)[1][0],
            ops.GradOperation(get_by_list=True)(net, weights)(X)[0],
            ms.grad(net, None, weights[0])(X),
        ]

    first = calls()
    count = len(call_handler.current().compiled_calls)
    for again, before in zip(calls(), first, strict=True):
        np.testing.assert_array_equal(again.asnumpy(), before.asnumpy())
    assert len(call_handler.current().compiled_calls) == count
    ms.grad(net, None, weights[1])(X)
    assert len(call_handler.current().compiled_calls) == count + 1
