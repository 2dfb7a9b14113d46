"""Cells that are set to train or to evaluate between calls of one graph."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.api import call_handler
from mspc.commands.run import run_script
from mspc.engine.variants import graphs_to_keep
from mspc.ir.diagnostics import MspcError
from tests import soak

X = Tensor(np.ones((8, 16), np.float32))


def network() -> Any:
    ms.set_seed(1)
    return nn.SequentialCell(nn.Dense(16, 16), nn.Dropout(p=0.5))


def dropped(output: Any) -> bool:
    return bool((output.asnumpy() == 0).any())


def test_a_cell() -> None:
    net = network()
    for mode in (False, True, False, True):
        net.set_train(mode)
        assert dropped(net(X)) is mode


@pytest.mark.parametrize("wrap", [ms.jit, lambda f: ms.value_and_grad(f, 0)], ids=["jit", "value_and_grad"])
def test_a_function_around_a_cell(wrap: Any) -> None:
    net = network()
    function = wrap(lambda x: net(x).sum())
    found: dict[bool, set[float]] = {True: set(), False: set()}
    for mode in (False, True, False, True, False):
        net.set_train(mode)
        result = function(X)
        found[mode].add(float(result[0] if isinstance(result, tuple) else result))
    assert len(found[False]) == 1
    assert not found[False] & found[True]


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


def test_a_step_goes_on_training_after_its_network_was_evaluated() -> None:
    net = network()
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.0)).set_train()
    trained = float(step(X, X))
    net.set_train(False)
    net(X)
    evaluated = float(nn.WithLossCell(net, nn.MSELoss())(X, X))
    assert float(step(X, X)) != evaluated != trained


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


# A limited number of graphs of a cell is stored; others are given up and compiled again.


SIZES = (1, 2, 3, 1, 2, 3, 3, 1)


def handler() -> Any:
    return call_handler.current()


def outputs(sizes: tuple[int, ...]) -> list[float]:
    """A network whose outputs depend on its parameters, which a step trains, and on how often each graph has run."""
    ms.set_seed(1)
    net = nn.SequentialCell(nn.Dense(16, 16), nn.Dropout(p=0.5))
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1)).set_train()
    rows = [Tensor(np.ones((size, 16), np.float32)) for size in sizes]
    return [float(step(x, x).asnumpy()) for x in rows]


def test_values_are_those_of_a_run_that_keeps_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = outputs(SIZES)
    counts = handler().steps()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "2")
    call_handler.install(None)
    assert outputs(SIZES) == expected
    assert handler().steps() == counts == {"train.0": 3, "train.1": 2, "train.2": 3}
    assert len(handler().compiled_calls) == 2
    assert capsys.readouterr().err == (
        "warning: TrainOneStepCell was called with more than 2 kinds of arguments (MSPC_KEPT_GRAPHS): its graph for "
        "Float32 (1, 16), Float32 (1, 16) is given up, as others will be, and compiled again for the next such call\n"
    )


def test_what_was_not_called_for_longest_goes_and_frees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "2")
    net = nn.ReLU()
    alive: dict[int, Any] = {}
    for size in (1, 2, 1, 3):
        net(Tensor(np.ones(size, np.float32)))
        alive.setdefault(size, weakref.ref(list(handler().compiled_calls.values())[-1].executor))
    gc.collect()
    assert [size for size, executor in alive.items() if executor() is not None] == [1, 3]
    other = nn.ReLU()  # has graphs of its own
    for size in (1, 2):
        other(Tensor(np.ones(size, np.float32)))
    assert len(handler().compiled_calls) == 4


def test_graphs_that_look_alike_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "1")
    function = ms.jit(lambda x, unused: x + 1)
    for unused in (1, 2, 3, 1, 2, 2):
        function(Tensor(np.ones(2, np.float32)), unused)
    assert sum(handler().steps().values()) == 6


@pytest.mark.parametrize("given", ["0", "many", "-1", ""])
def test_a_number_that_is_none(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", given)
    with pytest.raises(MspcError, match=f"MSPC_KEPT_GRAPHS must be an integer from 1, not '{given}'"):
        graphs_to_keep()


CACHED_SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, Tensor
from mindspore.communication import init, get_rank

init()
ms.set_auto_parallel_context(parallel_mode="MODE")
net = nn.Dense(4, 1, weight_init="ones", has_bias=False)
for size in (2, 4, 6, 2, 4) if get_rank() or not APART else (2, 2, 4, 2, 6):
    out = net(Tensor(np.ones((size, 4), np.float32)))
from mspc.api import call_handler
print(len(call_handler.current().compiled_calls), float(out.asnumpy().sum()))
"""


@pytest.mark.parametrize(
    ("mode", "apart", "expected"),
    [("semi_auto_parallel", False, ["2 16.0"] * 2), ("stand_alone", True, ["2 24.0", "2 16.0"])],
)
def test_cached_on_ranks(
    mode: str, apart: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "2")
    script = tmp_path / "shapes.py"
    script.write_text(CACHED_SCRIPT.replace("MODE", mode).replace("APART", str(apart)))
    run_script(script, 2, simulate=True)
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected)


class Trainer:
    """An object whose method is a graph, as scripts have them."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.dropout = nn.Dropout(p=0.5).set_train()

    @ms.jit
    def step(self, x: Any) -> Any:
        return self.dropout(x) * self.factor


def test_a_method_is_compiled_once_for_each_object() -> None:
    x = Tensor(np.ones(64, np.float32))
    trainers = (Trainer(1.0), Trainer(3.0))
    found = [trainer.step(x).asnumpy() for _ in range(3) for trainer in trainers]
    assert len(handler().compiled_calls) == 2
    assert [set(values) <= {0.0, factor} for values, factor in zip(found, (2.0, 6.0) * 3, strict=True)] == [True] * 6
    assert len({values.tobytes() for values in found[::2]}) == 3


def test_gradients_that_are_requested_again_draw_other_numbers() -> None:
    """A request in a loop is compiled again, as what its function reads may have changed; it is one more step of it."""
    x = Tensor(np.ones(64, np.float32))
    dropout = nn.Dropout(p=0.5).set_train()

    def made_again(cell: Any) -> Any:
        def forward(x: Any) -> Any:
            return cell(x).sum()

        return ms.grad(forward)

    def same(x: Any) -> Any:
        return dropout(x).sum()

    for request in (lambda: ms.grad(same), lambda: made_again(dropout)):
        assert len({request()(x).asnumpy().tobytes() for _ in range(3)}) == 3


# Networks, functions and their graphs live as long as the script has them.


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


def test_another_object_at_the_place_of_one_that_is_gone() -> None:
    """Python gives the id of what is gone to others: what is stored under the id is not theirs."""

    def scaled(by: float) -> Any:
        class Scaled(nn.Cell):
            def construct(self, x: Any) -> Any:
                return x * by

        return Scaled()

    for by in range(1, 40):
        assert float(scaled(float(by))(RELEASED_X).asnumpy()[0, 0]) == by


def test_a_function_reads_the_network_that_its_name_has_now() -> None:
    names = {"net": nn.Dense(8, 8)}

    def function(x: Any) -> Any:
        return names["net"](x)

    ms.jit(function)(RELEASED_X)
    names["net"] = nn.Dense(8, 8)
    gc.collect()
    np.testing.assert_array_equal(ms.jit(function)(RELEASED_X).asnumpy(), names["net"](RELEASED_X).asnumpy())


def test_memory_is_flat_while_networks_come_and_go() -> None:
    """A round has a network that takes 16 MB with its optimizer."""
    before = soak.run(60, 60, rounds=3, quiet=True)
    after = soak.run(60, 60, rounds=6, quiet=True)
    assert after.rounds == 6
    assert after.graphs[-1] <= before.graphs[-1] + 6  # the network with 64 shapes
    assert after.megabytes[-1] - before.megabytes[-1] < 48
