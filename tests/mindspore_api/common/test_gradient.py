"""Requests for gradients are plain data.

Derivatives of functions with tensors that they capture.
"""

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, ops, value_and_grad
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.common.gradient import GradientFunction, JitFunction

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


def test_calls_of_scripts_name_arguments():
    """Functions of `jit` and requests for gradients are called with names, as the function itself is."""

    def scaled(x, factor=1.0, offset=None):
        return ((x if offset is None else x + offset) * factor).sum()

    x = ms.Tensor([1.0, 2.0])
    graph = ms.jit(scaled)
    assert float(graph(x, offset=x)) == 6.0
    assert float(graph(offset=x, factor=2.0, x=x)) == 12.0
    request = ms.value_and_grad(scaled)
    for _ in range(2):
        value, gradient = request(x, offset=x, factor=2.0)
        assert (float(value), gradient.asnumpy().tolist()) == (12.0, [2.0, 2.0])
    with pytest.raises(TypeError, match=r"scaled\(\): got an unexpected keyword argument 'what'"):
        graph(x, what=1)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        graph(factor=1.0)


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
