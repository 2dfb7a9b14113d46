"""Cells that are set to train or to evaluate between calls of one graph.

Copies of networks train apart from what they were copied from.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, ParameterTuple, Tensor, nn
from mspc.commands.run import run_script

X = Tensor(np.ones((8, 16), np.float32))


def network() -> Any:
    ms.set_seed(1)
    return nn.SequentialCell(nn.Dense(16, 16), nn.Dropout(p=0.5))


def dropped(output: Any) -> bool:
    return bool((output.asnumpy() == 0).any())


@pytest.mark.parametrize("way", ["set_train", "training"])
def test_a_part_of_a_network_that_evaluates(way: str) -> None:
    net = network().set_train(False)
    assert not dropped(net(X))
    if way == "training":
        net[1].training = True
    else:
        net[1].set_train()
    assert dropped(net(X))
    net.set_train(False)
    assert not dropped(net(X))


def test_statistics_are_those_of_the_batch_while_training() -> None:
    net = nn.BatchNorm1d(16)
    function = ms.jit(lambda x: net(x))
    far = Tensor(np.random.default_rng(1).normal(5, 1, (8, 16)).astype(np.float32))
    net.set_train(False)
    assert function(far).asnumpy().mean() > 4
    net.set_train()
    assert abs(function(far).asnumpy().mean()) < 1e-3
    assert net.moving_mean.asnumpy().mean() == pytest.approx(0.5, abs=0.1)
    net.set_train(False)
    assert function(far).asnumpy().mean() > 3


SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, Tensor
from mindspore.communication import init

init()
ms.set_auto_parallel_context(parallel_mode="MODE")
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(16, 16), nn.Dropout(p=0.5))
x = Tensor(np.ones((4, 16), np.float32))
found, function = [], ms.jit(lambda x: net(x))
for mode in (True, False, True, False):
    net.set_train(mode)
    found.append(bool((function(x).asnumpy() == 0).any()))
    found.append(bool((net(x).asnumpy() == 0).any()))
print(found)
"""


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "data_parallel"])
def test_on_ranks(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "modes.py"
    script.write_text(SCRIPT.replace("MODE", mode))
    run_script(script, 2, simulate=True)
    assert capsys.readouterr().out.splitlines() == [str([True, True, False, False] * 2)] * 2


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
