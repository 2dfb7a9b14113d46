"""Copies of networks train apart from what they were copied from."""

from __future__ import annotations

import copy

import numpy as np

from mspc import Parameter, ParameterTuple, Tensor, nn


def names(cell):
    return [p.name for p in cell.get_parameters()]


def test_a_deep_copy_trains_on_parameters_of_its_own_under_the_same_names():
    """Before and after graphs hold the parameters."""

    class Tied(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first = nn.Dense(2, 2)
            self.again = self.first
            self.listed = [Parameter(Tensor([1.0]), "a"), Parameter(Tensor([1.0]), "b")]
            self.pair = ParameterTuple(self.listed)

        def construct(self, x):
            return self.again(self.first(x)) + self.pair[0].sum()

    net, x = Tied(), Tensor(np.ones((2, 2), np.float32))
    for _ in range(2):
        twin = copy.deepcopy(net)
        assert names(twin) == names(net)
        assert all(isinstance(p, Parameter) and p.owned for p in twin.get_parameters())
        assert not {*map(id, twin.get_parameters())} & {*map(id, net.get_parameters())}
        assert twin.again is twin.first
        assert twin.listed[0] is twin.pair[0]
        before = net(x).asnumpy()
        np.testing.assert_array_equal(twin(x).asnumpy(), before)
        step = nn.TrainOneStepCell(nn.WithLossCell(twin, nn.MSELoss()), nn.SGD(twin.trainable_params(), 0.1))
        step(x, x)
        assert not np.array_equal(twin(x).asnumpy(), before)
        np.testing.assert_array_equal(net(x).asnumpy(), before)
