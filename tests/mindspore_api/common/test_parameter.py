"""Parameters and initial values."""

from __future__ import annotations

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.mindspore_api import common

initializer = common.initializer.initializer


def test_set_data_checks_shape_and_kind():
    w = Parameter(Tensor(np.zeros((2, 2)), ms.float32), "w")
    with pytest.raises(ValueError, match=r"parameter 'w' has shape \(2, 2\), the new values \(2,\)"):
        w.set_data(Tensor([1.0, 2.0]))
    n = Parameter(Tensor([1], ms.int32), "n")
    with pytest.raises(TypeError, match="parameter 'n' is Int32, the new values are Float32"):
        n.set_data(Tensor([1.0]))


def test_seed_must_be_a_small_integer():
    with pytest.raises(ValueError, match=r"set_seed\(-1\): the seed must be from 0 to 4294967295"):
        ms.set_seed(-1)
    with pytest.raises(TypeError, match="set_seed: seed must be an integer"):
        ms.set_seed("1")


def test_set_seed_seeds_numpy():
    ms.set_seed(3)
    first = np.random.rand()
    ms.set_seed(3)
    assert np.random.rand() == first
    assert ms.get_seed() == 3


def test_value_is_a_tensor_of_the_present_values():
    w = Parameter(Tensor([1.0, 2.0]), "w")
    drawn = Parameter(initializer("ones", (2,)), "drawn")
    found = w.value()
    assert type(found) is type(w.value().value()) is type(drawn.value()) is Tensor
    assert drawn.value().asnumpy().tolist() == [1, 1]
    ops.assign(w, Tensor([5.0, 6.0]))
    w[0] = 9.0
    w.set_data(Tensor([7.0, 8.0]))
    assert found.asnumpy().tolist() == [1, 2]
    found = w.value()
    found[0] = 100.0
    assert (found.asnumpy().tolist(), w.asnumpy().tolist()) == ([100, 8], [7, 8])
    x = Tensor([1.0, 2.0])
    assert x.value() is x


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_value_does_not_follow_training(mode: int):
    ms.set_context(mode=mode)

    class Scales(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor([2.0]), "w")
            self.fixed = Tensor([4.0])

        def construct(self, x):
            return x * self.w.value() + x.value() * self.fixed.value()

    net = Scales()
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    before = net.w.value()
    step = nn.TrainOneStepCell(net, optimizer)
    assert step(Tensor([3.0])).asnumpy().tolist() == [18]
    between = net.w.value()
    assert step(Tensor([3.0])).asnumpy().tolist() == [13.5]
    assert [t.asnumpy().tolist() for t in (before, between, net.w.value())] == [[2], [0.5], [-1]]
