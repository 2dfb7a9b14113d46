"""Every call of a random operator draws numbers of its own, the same ones on any number of ranks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from training import Training

import mspc as ms
from mspc import Parameter, Tensor, mint, nn, ops

X = np.ones((8, 32), np.float32)


class Masks(nn.Cell):
    """Six masks: of two calls of a function, of a layer called twice, of a primitive called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dropout(p=0.5)
        self.operator = ops.Dropout(0.5, 3, 4)

    def construct(self, x: Any) -> Any:
        first, second = self.operator(x)[0], self.operator(x)[0]
        return ops.dropout(x), mint.nn.functional.dropout(x), self.layer(x), self.layer(x), first, second


def test_calls_draw_apart() -> None:
    ms.set_seed(5)
    cell = Masks().set_train()
    training = Training(cell, [X.shape])
    found = [mask for step in training.run([(X,), (X,)]) for mask in step]
    for one, other in itertools.combinations(found, 2):
        assert (one != other).any()
    assert all(0.3 < np.mean(mask > 0) < 0.7 for mask in found)
    sharded = Training(cell, [X.shape], 4, "semi_auto_parallel").run([(X,), (X,)])
    for one, other in zip(found, [mask for step in sharded for mask in step], strict=True):
        np.testing.assert_array_equal(one, other)


def test_calls_outside_of_a_network_draw_apart() -> None:
    ms.set_seed(5)
    first, second = ops.dropout(Tensor(X)).asnumpy(), ops.dropout(Tensor(X)).asnumpy()
    assert (first != second).any()
    ms.set_seed(5)
    np.testing.assert_array_equal(ops.dropout(Tensor(X)).asnumpy(), first)
    same = [ops.dropout(Tensor(X), seed=7).asnumpy() for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_a_gradient_has_the_mask_of_its_loss() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(X), "w")

        def construct(self, x: Any) -> Any:
            return (ops.dropout(self.w) * 3.0 + ops.dropout(self.w) * x).sum()

    class Step(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.both = ms.value_and_grad(self.net, None, self.net.trainable_params())

        def construct(self, x: Any) -> Any:
            plain = self.net(x)
            loss, gradients = self.both(x)
            return plain, loss, gradients[0]

    plain, loss, gradient = Training(Step(), [X.shape]).run([(X,)])[0]
    assert plain == loss == pytest.approx(gradient.sum(), rel=1e-6)
    assert sorted(np.unique(gradient)) == [0.0, 2.0, 6.0, 8.0]


def test_uniform_numbers_of_two_calls_differ() -> None:
    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x + ops.UniformReal()((8, 32)), x + ops.UniformReal()((8, 32))

    first, second = Training(Net(), [X.shape]).run([(X,)])[0]
    assert (first != second).any()


@pytest.mark.parametrize("p", [1.0, -0.5, "x"])
def test_a_probability_is_one(p: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        ops.dropout(Tensor(X), p)
    said = "must be a number, not 'x'" if p == "x" else f"is {p}, not in [0, 1)"
    assert said in str(raised.value)
