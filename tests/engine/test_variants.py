"""Cells that are set to train or to evaluate between calls of one graph.

Copies of networks train apart from what they were copied from.
"""

import copy
import gc
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, ParameterTuple, Tensor, nn, ops
from mspc.commands.run import run_script
from mspc.engine.capture import capture
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.state import Session, swap
from tests.texts import IMPORTS

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


SCRIPT = IMPORTS + """
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


RELEASED_X = Tensor(np.ones((4, 8), np.float32))


def training_step() -> tuple[Any, ...]:
    net = nn.Dense(8, 8)
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    step(RELEASED_X, RELEASED_X)
    return net, optimizer, step, net.weight, optimizer.moment1[0]


def step_by_hand() -> tuple[Any, ...]:
    net, loss = nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8)), nn.MSELoss()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)

    def forward(x: Any, y: Any) -> Any:
        return loss(net(x), y)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    for _ in range(2):
        optimizer(gradient(RELEASED_X, RELEASED_X)[1])
    net.set_train(False)
    net(RELEASED_X)
    return net, optimizer, forward, gradient, net[0].weight


def functions() -> tuple[Any, ...]:
    net = nn.Dense(8, 8)

    @ms.jit
    def compiled(x: Any) -> Any:
        return net(x)

    def function(x: Any, cell: Any) -> Any:
        return cell(x).sum()

    compiled(RELEASED_X)
    ms.grad(function)(RELEASED_X, net)
    ms.jit(net.construct)(RELEASED_X)
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
            ms.grad(function)(RELEASED_X),
            ms.value_and_grad(ms.jit(function))(RELEASED_X)[0],
            ms.value_and_grad(net, 0, weights)(RELEASED_X)[1][0],
            ops.GradOperation(get_by_list=True)(net, weights)(RELEASED_X)[0],
            ms.grad(net, None, weights[0])(RELEASED_X),
        ]

    first = calls()
    count = len(call_handler.current().compiled_calls)
    for again, before in zip(calls(), first, strict=True):
        np.testing.assert_array_equal(again.asnumpy(), before.asnumpy())
    assert len(call_handler.current().compiled_calls) == count
    ms.grad(net, None, weights[1])(RELEASED_X)
    assert len(call_handler.current().compiled_calls) == count + 1


COMPILED_SCRIPT = """
import numpy as np
import mindspore.dataset as ds
from mindspore import Model, nn

seen = []

def noted(x):
    seen.append(float(x[0]))
    return x

data = ds.NumpySlicesDataset(np.arange(1200, dtype=np.float32).reshape(600, 2), ["x"], shuffle=False)
data = data.map(noted, "x").shuffle(500).batch(8)
net = nn.Dense(2, 1)
Model(net, optimizer=nn.SGD(net.trainable_params())).train(1, data)
"""


def test_rows(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COMPILED_SCRIPT)
    before, launcher = swap(Session.of_rank(0, 1)), call_handler.installed()
    try:
        found = capture(script, [], Session.of_rank(0, 1))
        seen = sys.modules["__main__"].seen
    finally:
        swap(before)
        call_handler.install(launcher)
    (batch,) = found.args
    assert batch.shape == (8, 2)
    assert seen == [float(2 * row) for row in range(8)]


TEXT = """
import json
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
import mindspore.dataset as ds
from mindspore.common.initializer import initializer
from mindspore.communication import init, get_rank, get_group_size
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.train import Model

init()
rank, size = get_rank(), get_group_size()
ms.set_seed(1)
draw = np.random.default_rng(0)
x, y = draw.standard_normal((8, 6)).astype(np.float32), (np.arange(8) % 4).astype(np.int32)


class Net(nn.Cell):
    def __init__(self, classes_cut):
        super().__init__()
        self.w = Parameter(initializer("normal", (6, 4)), "w")
        self.product = ops.MatMul()
        if classes_cut:
            self.product.shard(((1, 1), (1, size)))

    def construct(self, x):
        return self.product(x, self.w)


net = Net(CUT)
target = net
OWN = True
MODE
part = slice(rank * 8 // size, (rank + 1) * 8 // size) if OWN else slice(None)
data = ds.GeneratorDataset([(x[part], y[part])], ["x", "y"])
model = Model(target, nn.CrossEntropyLoss(), nn.SGD(net.trainable_params(), 0.5), metrics={"acc", "loss"})
model.fit(2, data, data)
print(json.dumps([part.start, model.eval(data), model.predict(Tensor(x[part])).asnumpy().tolist()]))
"""
CONTEXT = 'ms.set_auto_parallel_context(parallel_mode="{}"{})'
NOT_OWN = "; OWN = False"


def found(script: Path, mode: str, sharded: bool, ranks: int, capsys: Any) -> list[Any]:
    script.write_text(TEXT.replace("MODE", mode).replace("CUT", str(sharded)))
    run_script(script, ranks, simulate=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("mode", "sharded"),
    [
        (CONTEXT.format("data_parallel", ", gradients_mean=True"), False),
        (CONTEXT.format("semi_auto_parallel", ""), True),
        (CONTEXT.format("semi_auto_parallel", ', dataset_strategy="full_batch"') + NOT_OWN, True),
        (CONTEXT.format("auto_parallel", ""), False),
        (CONTEXT.format("auto_parallel", ', search_mode="sharding_propagation"'), True),
        ("target = AutoParallel(net)", True),
        ('target = AutoParallel(net, "sharding_propagation"); target.dataset_strategy("full_batch")' + NOT_OWN, True),
    ],
    ids=["data", "semi", "full", "auto", "propagated", "AutoParallel", "AutoParallel full"],
)
def test_it_is_as_on_one_device(mode: str, sharded: bool, tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "modes.py"
    [[_, results, outputs]] = found(script, "", False, 1, capsys)
    ranks = found(script, mode, sharded, 4, capsys)
    assert len(ranks) == 4
    for start, own_results, own in ranks:
        assert own_results == pytest.approx(results, rel=1e-5)
        place = slice(None) if start is None else slice(start, start + 2)
        np.testing.assert_allclose(own, outputs[place], rtol=1e-4, atol=1e-6)
