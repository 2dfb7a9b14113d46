"""Gradients that cells give themselves (`bprop`)."""

from __future__ import annotations

import numpy as np

import mspc as ms
from mspc import Tensor, nn
from mspc.mindspore_api.common.api import _cell_graph_executor


def _grads(cell: nn.Cell, *args: Tensor) -> list[np.ndarray]:
    found = ms.grad(cell, tuple(range(len(args))))(*args)
    return [grad.asnumpy() for grad in (found if isinstance(found, tuple) else (found,))]


class Doubled(nn.Cell):
    def construct(self, x, y):
        return x * y, x - y

    def bprop(self, x, y, out, dout):
        return dout[0] * 2 + out[0], dout[1] * 3


class Around(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Doubled()

    def construct(self, x):
        product, difference = self.inner(x, x * x)
        return (product**2).sum() + (difference * x).sum()


def test_the_gradient_of_a_cell_is_its_own() -> None:
    x = np.array([1.0, 2.0, -0.5], np.float32)
    product, dproduct, ddifference = x**3, 2 * x**3, x
    expected = 2 * dproduct + product + 3 * ddifference * 2 * x + (x - x * x)
    np.testing.assert_allclose(_grads(Around(), Tensor(x))[0], expected, rtol=1e-6)
    np.testing.assert_allclose(Around()(Tensor(x)).asnumpy(), (x**6).sum() + ((x - x * x) * x).sum(), rtol=1e-6)


def test_a_gradient_that_is_given_is_differentiated_again() -> None:
    class Cubed(nn.Cell):
        def construct(self, x):
            return x * x * x

        def bprop(self, x, out, dout):
            return dout * 4 * x * x

    x = Tensor(np.array([1.0, 2.0], np.float32))
    np.testing.assert_allclose(ms.grad(ms.grad(Cubed()))(x).asnumpy(), [8.0, 16.0])


def test_no_operator_of_a_gradient_is_left_where_none_is_taken() -> None:
    phase, _ = _cell_graph_executor.compile(Around(), Tensor(np.ones(3, np.float32)))
    names = [name.partition("-")[0] for name in _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"]]
    assert not {"OwnGradient", "GradientPlaceholder"} & {*names}
    assert names.count("Mul") == 3  # x * x, x * y, difference * x
