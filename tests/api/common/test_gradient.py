"""Requests for gradients are plain data."""

from __future__ import annotations

import pytest

import mspc as ms
from mspc import Parameter, Tensor, ops
from mspc.api import call_handler
from mspc.api.common.gradient import GradientFunction, JitFunction

w = Parameter(Tensor([1.0]), "w")
v = Parameter(Tensor([2.0]), "v")


def loss(x, y):
    return x * y


class Recorder:
    def __init__(self):
        self.seen = []

    def call(self, target, args):
        self.seen.append((target, args))
        return Tensor(0.0)


def test_value_and_grad_fields():
    found = ms.value_and_grad(loss, None, [w, v], has_aux=True)
    assert found == GradientFunction(loss, (), (w, v), has_aux=True, value=True)
    one = ms.value_and_grad(loss, (0, 1), w)
    assert (one.positions, one.weights, one.positions_tuple, one.weights_tuple) == ((0, 1), (w,), True, False)
    assert ms.grad(loss) == GradientFunction(loss, (0,))


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ({}, ((0,), None, False, False, False)),
        ({"get_all": True}, ((), None, True, False, True)),
        ({"get_by_list": True}, ((), (w,), False, False, False)),
        ({"get_all": True, "get_by_list": True}, ((), (w,), True, False, True)),
        ({"sens_param": True}, ((0,), None, False, True, False)),
    ],
)
def test_grad_operation_flags(flags, fields):
    found = ops.GradOperation(**flags)(loss, [w])
    names = (found.positions, found.weights, found.get_all, found.sens_param, found.all_positions)
    assert names == fields


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ms.grad(3), TypeError, "grad takes a Cell or a function, not int"),
        (lambda: ms.grad(loss, None), ValueError, "grad: grad_position and weights must not both be None"),
        (
            lambda: ms.grad(loss, "0"),
            TypeError,
            "grad: grad_position must be an integer or a tuple of them, not '0'",
        ),
        (lambda: ms.grad(loss, -1), ValueError, "grad: grad_position -1 is negative"),
        (
            lambda: ms.value_and_grad(loss, 0, [1]),
            TypeError,
            "weights must be Parameters, for example net.trainable_params()",
        ),
        (
            lambda: ops.GradOperation(get_all=1),
            TypeError,
            "GradOperation: get_all must be True or False, not 1",
        ),
    ],
)
def test_wrong_requests_are_named(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert caught.value.message == message


def test_calls_reach_the_launcher():
    recorder = Recorder()
    call_handler.install(recorder)
    x = Tensor(1.0)
    request = ms.grad(loss)
    request(x, x)
    jitted = ms.jit(loss)
    assert jitted == JitFunction(loss)
    jitted(x, x)
    ms.jit(jit_config=None)(loss)(x, x)
    assert [target for target, _ in recorder.seen] == [request, loss, loss]


def test_jit_binds_methods():
    class Step:
        @ms.jit
        def run(self, x):
            return x

    recorder = Recorder()
    call_handler.install(recorder)
    step = Step()
    step.run(Tensor(1.0))
    assert recorder.seen[0][0].__self__ is step
