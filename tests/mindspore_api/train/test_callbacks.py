"""Callbacks that print, keep, stop, and change the learning rate."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mspc import Model, Parameter, Tensor, nn, train
from mspc.dataset import GeneratorDataset
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


@pytest.mark.parametrize(
    ("settings", "losses", "stopped"),
    [
        ({"patience": 0}, [3, 2, 1, 1, 1], 4),
        ({"patience": 1}, [3, 2, 1, 1, 1], 4),
        ({"patience": 2}, [3, 2, 1, 1, 1], 5),
        ({"patience": 2}, [3, 2, 4, 1, 2, 2], 6),
        ({"patience": 2, "min_delta": 0.5}, [3.0, 2.7, 2.6, 1.0], 3),
        ({"patience": 1, "min_delta": -0.5}, [3.0, 2.7], 2),
        ({"patience": 2, "mode": "max"}, [1, 2, 1, 1], 4),
        ({"patience": 3, "baseline": 2.0}, [3.0, 2.9, 2.8, 1.0], 3),
        ({"patience": 3, "baseline": 2.0}, [3.0, 1.9, 1.8, 1.7], 0),
        ({"patience": 1}, [0.0, 0.0], 2),
    ],
)
def test_training_stops_where_nothing_improves(settings: Any, losses: Any, stopped: int) -> None:
    assert Run(train.EarlyStopping("loss", **settings)).losses(*losses) == stopped


def test_a_metric_is_better_the_larger_it_is_and_an_error_the_smaller() -> None:
    run = Run(train.EarlyStopping("accuracy", patience=2))
    assert [run.epoch(accuracy=a) for a in (0.1, 0.2, 0.2, 0.1)] == [False, False, False, True]
    run = Run(train.EarlyStopping("eval_loss", patience=1))
    assert [run.epoch(eval_loss=a) for a in (0.2, 0.1, 0.2)] == [False, False, True]


def test_the_best_weights_come_back(capsys: Any) -> None:
    callback = train.EarlyStopping("loss", patience=2, restore_best_weights=True, verbose=True)
    run = Run(callback)
    for loss in (2.0, 1.0, 3.0, 4.0):
        run.network.w.set_data(Tensor([[loss, loss]]))
        stopped = run.epoch(loss)
    assert stopped
    assert run.network.w.asnumpy().tolist() == [[1.0, 1.0]]
    callback.on_train_end(run.context)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["Restoring model weights from the end of the best epoch.", "Epoch 00004: early stopping"]


def test_a_second_run_begins_anew() -> None:
    callback = train.EarlyStopping("loss", patience=1)
    assert Run(callback).losses(1.0, 1.0) == 2
    assert Run(callback).losses(5.0, 4.0) == 0


def test_what_is_not_there_is_said_once(capsys: Any) -> None:
    run = Run(train.EarlyStopping("acc"))
    assert not run.epoch(loss=1.0, eval_loss=2.0)
    assert not run.epoch(loss=1.0)
    assert capsys.readouterr().err == (
        "warning: EarlyStopping looks at 'acc', which is not there at the end of epoch 1; there is loss, eval_loss; "
        "Model.fit evaluates\n"
    )


def test_an_array_cannot_be_looked_at() -> None:
    with pytest.raises(ValueError, match=r"EarlyStopping: 'f1' is an array of shape \(2,\), not one number"):
        Run(train.EarlyStopping("f1")).epoch(f1=np.zeros(2))


@pytest.mark.parametrize(
    ("settings", "losses", "rates"),
    [
        ({"patience": 1}, [2, 1, 1, 1], [0.5, 0.5, 0.05, 0.005]),
        ({"patience": 2, "factor": 0.5}, [2, 2, 2, 2, 2], [0.5, 0.5, 0.25, 0.25, 0.125]),
        ({"patience": 1, "cooldown": 2}, [2, 2, 2, 2, 2], [0.5, 0.05, 0.05, 0.005, 0.005]),
        ({"patience": 1, "min_lr": 0.1}, [2, 2, 2], [0.5, 0.1, 0.1]),
        ({"patience": 1, "min_delta": 0.5}, [2.0, 1.7, 1.0], [0.5, 0.05, 0.05]),
    ],
)
def test_the_learning_rate_falls_on_a_plateau(settings: Any, losses: Any, rates: Any) -> None:
    run = Run(train.ReduceLROnPlateau("loss", **settings))
    found: list[float] = []
    for loss in losses:
        run.epoch(loss)
        found.append(run.rate())
    assert found == pytest.approx(rates, rel=1e-6)


def test_a_falling_rate_is_printed(capsys: Any) -> None:
    run = Run(train.ReduceLROnPlateau("loss", patience=0, verbose=True))
    run.losses(1.0, 1.0)
    assert capsys.readouterr().out == "Epoch 00002: ReduceLROnPlateau reducing learning rate to 0.05.\n"


def test_rates_are_scheduled_step_by_step() -> None:
    run = Run(train.LearningRateScheduler(lambda rate, step: rate / 2 if step == 2 else rate))
    found: list[float] = []
    for step in (1, 2, 3):
        run.param.cur_step_num = step
        run.callback.on_train_step_end(run.context)
        found.append(run.rate())
    assert found == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("callback", [train.ReduceLROnPlateau("loss"), train.LearningRateScheduler(lambda r, s: r)])
def test_a_rate_that_is_no_number_stays(callback: Any) -> None:
    run = Run(callback, rate=[0.1, 0.2, 0.3])
    run.param.net_outputs = Tensor(1.0)
    with pytest.raises(ValueError, match="the learning rate of SGD changes by a schedule or differs between parameter"):
        (callback.on_train_epoch_end if "Plateau" in repr(callback) else callback.on_train_step_end)(run.context)


def test_history_keeps_epochs_losses_and_metrics() -> None:
    history = train.History()
    run = Run(history)
    run.epoch(0.5, acc=0.25)
    run.param.cur_epoch_num = 4
    run.epoch(0.25, acc=0.75)
    assert history.epoch == {"epoch": [1, 5]}
    assert history.history == {"net_output": [0.5, 0.25], "acc": [0.25, 0.75]}


def data(steps: int = 2) -> Any:
    row = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    return GeneratorDataset(lambda: iter([row] * steps), ["x", "y"])


def model() -> Model:
    net = Net()
    return Model(net, nn.MSELoss(), nn.SGD(net.trainable_params()))


def test_functions_as_callbacks() -> None:
    seen: list[Any] = []
    named = train.LambdaCallback(
        on_train_epoch_end=lambda run: seen.append(run.original_args().cur_epoch_num),
        on_train_end=lambda run: seen.append("end"),
    )
    first = train.LambdaCallback(lambda run: seen.append("begin"))
    model().train(2, data(), [named, first])
    assert seen == ["begin", 1, "begin", 2, "end"]


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


def test_no_summary_is_written(capsys: Any, tmp_path: Any) -> None:
    model().train(1, data(), train.SummaryCollector(str(tmp_path / "s"), collect_freq=1))
    assert capsys.readouterr().err.startswith(f"warning: SummaryCollector('{tmp_path}/s') writes nothing here; ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: train.EarlyStopping(3), TypeError, "EarlyStopping: monitor must be a string, not 3"),
        (lambda: train.EarlyStopping(mode="best"), ValueError, "EarlyStopping: mode 'best' is none of 'auto', 'min', "),
        (lambda: train.EarlyStopping(patience=-1), ValueError, "EarlyStopping: patience -1 must be an integer, 0 or "),
        (lambda: train.EarlyStopping(verbose=1), TypeError, "EarlyStopping: verbose must be True or False, not 1"),
        (lambda: train.EarlyStopping(baseline="1"), TypeError, "EarlyStopping: baseline must be a number or None"),
        (lambda: train.ReduceLROnPlateau(factor=1.0), ValueError, "ReduceLROnPlateau: factor 1.0 must be above 0 and "),
        (lambda: train.ReduceLROnPlateau(cooldown=0.5), TypeError, "ReduceLROnPlateau: cooldown must be an integer"),
        (lambda: train.LearningRateScheduler(0.1), TypeError, "LearningRateScheduler: learning_rate_function must"),
        (lambda: train.LambdaCallback(on_step_end=print), TypeError, "LambdaCallback has no on_step_end; it takes on_"),
        (lambda: train.LambdaCallback(3), TypeError, "LambdaCallback: on_train_epoch_begin must be a function, not 3"),
        (lambda: train.TimeMonitor(0), ValueError, "TimeMonitor: data_size 0 must be a positive integer"),
        (lambda: train.TimeMonitor(data_time=1), TypeError, "TimeMonitor: data_time must be True or False, not 1"),
        (lambda: train.RunContext(3), TypeError, "RunContext takes a dict, not int"),
    ],
)
def test_wrong_arguments_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.message.startswith(message)
