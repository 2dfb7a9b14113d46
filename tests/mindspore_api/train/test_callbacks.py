"""Callbacks that print, keep, stop, and change the learning rate.

Names that older scripts import from `train`.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Model, Parameter, Tensor, nn, train
from mspc.dataset import GeneratorDataset
from mspc.mindspore_api.alias import public
from mspc.mindspore_api.index.table import rows_of
from mspc.train import serialization
from mspc.train.callback import InternalCallbackParam


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor([[1.0, 2.0]]), "w")

    def construct(self, x: Any) -> Any:
        return x * self.w


class Run:
    """A run of one step an epoch, told to one callback."""

    def __init__(self, callback: Any, rate: Any = 0.5) -> None:
        self.network = Net()
        self.optimizer = nn.SGD(self.network.trainable_params(), rate)
        self.param = InternalCallbackParam(
            train_network=self.network, optimizer=self.optimizer, cur_epoch_num=0, cur_step_num=0, batch_num=1,
            mode="train",
        )  # fmt: skip
        self.context = train.RunContext(self.param)
        self.callback = callback
        callback.on_train_begin(self.context)

    def epoch(self, loss: float = 1.0, **results: Any) -> bool:
        """Whether the callback wants no further epoch."""
        self.param.update(net_outputs=Tensor(loss), cur_epoch_num=self.param.cur_epoch_num + 1)
        self.param.update(eval_results=results, metrics=results)
        self.callback.on_train_epoch_end(self.context)
        return self.context.get_stop_requested()

    def losses(self, *losses: float) -> int:
        """Number of the epoch after which the callback stops, 0 for none."""
        return next((number for number, loss in enumerate(losses, 1) if self.epoch(loss)), 0)

    def rate(self) -> float:
        return float(self.optimizer.learning_rate)


def test_rates_are_scheduled_step_by_step() -> None:
    run = Run(train.LearningRateScheduler(lambda rate, step: rate / 2 if step == 2 else rate))
    found: list[float] = []
    for step in (1, 2, 3):
        run.param.cur_step_num = step
        run.callback.on_train_step_end(run.context)
        found.append(run.rate())
    assert found == [0.5, 0.25, 0.25]


def test_a_rate_that_is_no_number_stays() -> None:
    run = Run(train.LearningRateScheduler(lambda r, s: r), rate=[0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="the learning rate of SGD changes by a schedule or differs between parameter"):
        run.callback.on_train_step_end(run.context)


def data(steps: int = 2) -> Any:
    row = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    return GeneratorDataset(lambda: iter([row] * steps), ["x", "y"])


def model() -> Model:
    net = Net()
    return Model(net, nn.MSELoss(), nn.SGD(net.trainable_params()))


def test_times_name_steps_and_waits(capsys: Any) -> None:
    model().train(1, data(), train.TimeMonitor(data_time=True))
    number = r"[ \d]{1,}\.\d{3}"
    line = rf"Train epoch time: {number} ms, per step time: {number} ms \(data time: {number} ms\)\n"
    assert re.fullmatch(line, capsys.readouterr().out)


def test_an_evaluation_is_no_part_of_the_training_time(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monitor = train.TimeMonitor(data_time=True)
    run = Run(monitor)
    for event, at in (
        ("train_epoch_begin", 0), ("train_step_begin", 3), ("train_step_end", 4), ("eval_epoch_begin", 10),
        ("eval_step_begin", 15), ("eval_step_end", 16), ("eval_epoch_end", 110), ("train_epoch_end", 111),
    ):  # fmt: skip
        clock[0] = at
        run.param.mode = event.partition("_")[0]
        getattr(monitor, f"on_{event}")(run.context)
    assert capsys.readouterr().out.splitlines() == [
        "Eval epoch time: 100000.000 ms, per step time: 100000.000 ms (data time: 5000.000 ms)",
        "Train epoch time: 11000.000 ms, per step time: 11000.000 ms (data time: 3000.000 ms)",
    ]


MOVED = rows_of("train.serialization")


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_name_is_found_in_its_older_places(name: str) -> None:
    own = importlib.import_module(MOVED[name].home)
    assert getattr(ms.train, name) is getattr(serialization, name) is public(getattr(own, name))


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError):
        serialization.transform_checkpoints  # noqa: B018  # the access is what is tested
