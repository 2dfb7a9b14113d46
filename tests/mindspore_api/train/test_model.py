"""Model: epochs, sinks, evaluations between epochs; what callbacks are told, and when."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Model, Parameter, Tensor, nn, train
from mspc.amp import build_train_network
from mspc.dataset import GeneratorDataset
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.alias import public
from mspc.mindspore_api.index.table import rows_of
from mspc.train import Accuracy, Callback, Loss, LossMonitor, Metric, TimeMonitor, serialization
from mspc.train.callback import InternalCallbackParam


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor([[1.0, 2.0]]), "w")

    def construct(self, x: Any) -> Any:
        return x * self.w


def data(steps: int = 3, columns: int = 2) -> Any:
    def rows() -> Iterator[Any]:
        for i in range(steps):
            yield (np.full((2, 2), i, np.float32), *[np.array([0, 1], np.int32)] * (columns - 1))

    return GeneratorDataset(rows, [f"c{i}" for i in range(columns)])


def model(**settings: Any) -> Model:
    net = Net()
    return Model(net, nn.CrossEntropyLoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9), **settings)


class Told(Callback):
    """Writes down what it is told. entered: the same for the context."""

    def __init__(self, stop_at: int = 0) -> None:
        self.seen: list[str] = []
        self.stop_at = stop_at

    def __enter__(self) -> Told:
        self.seen.append("enter")
        return self

    def __exit__(self, *error: Any) -> None:
        self.seen.append(f"exit {error[0].__name__}" if error[0] else "exit")

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def hook(run: Any) -> None:
            param = run.original_args()
            self.seen.append(f"{name[3:]} {param.cur_epoch_num}.{param.cur_step_num}")
            if name == "on_train_step_end" and param.cur_step_num == self.stop_at:
                run.request_stop()

        return hook


def fed(losses: Any) -> list[float]:
    """The numbers in the rows that were fed."""
    return [float(args[0].array[0, 0]) for _, args in losses.calls]


class Tensors:
    """A data set of one column that hands out its tensors alone."""

    def get_dataset_size(self) -> int:
        return 2

    def create_tuple_iterator(self, num_epochs: int = -1) -> Iterator[Tensor]:
        return iter([Tensor(np.ones((2, 2), np.float32))] * 2)


def test_a_row_may_be_a_tensor_alone() -> None:
    told, net = Told(), nn.TrainOneStepCell(Net(), nn.SGD(Net().trainable_params(), 0.1))
    Model(net).train(1, Tensors(), told, dataset_sink_mode=False)
    assert "train_step_end 1.2" in told.seen


@pytest.mark.parametrize("target", ["CPU", "GPU"])
def test_a_sink_size_goes_on_in_the_data_set(losses: Any, target: str) -> None:
    ms.set_context(device_target=target)
    model().train(3, data(3), dataset_sink_mode=True, sink_size=2)
    assert fed(losses) == [0, 1, 2, 0, 1, 2]
    losses.calls.clear()
    model().train(1, data(3), dataset_sink_mode=True, sink_size=7)
    assert fed(losses) == [0, 1, 2, 0, 1, 2, 0]


def test_a_data_set_that_ends_early_is_counted_as_it_is() -> None:
    class Short:
        def get_dataset_size(self) -> int:
            return 5

        def create_tuple_iterator(self, num_epochs: int) -> Any:
            return data(3).create_tuple_iterator(num_epochs=num_epochs)

    ms.set_context(device_target="GPU")
    told = Told()
    model().train(1, Short(), told, dataset_sink_mode=True)
    assert "train_step_end 1.3" in told.seen


def test_a_stop_ends_the_epoch_and_the_run(losses: Any) -> None:
    told = Told(stop_at=2)
    model().train(5, data(3), told)
    assert told.seen[-4:] == ["train_step_end 1.2", "train_epoch_end 1.2", "train_end 1.2", "exit"]
    assert len(losses.calls) == 2


def test_callbacks_are_left_when_a_run_fails(losses: Any) -> None:
    losses.losses = [1.0, float("nan")]
    told = Told()
    with pytest.raises(ms.MspcError, match="epoch: 1 step: 2, loss is nan: training stops"):
        model().train(1, data(3), [told, LossMonitor()])
    assert told.seen[-1] == "exit ExecutionError"


def test_a_resumed_run_has_its_epochs_numbers(capsys: Any) -> None:
    model().train(3, data(2), LossMonitor(), initial_epoch=2)
    assert [line[:16] for line in capsys.readouterr().out.splitlines()] == ["epoch: 3 step: 1", "epoch: 3 step: 2"]


LOGITS = np.array([[0.1, 0.9], [0.2, 0.8]], np.float32)


class Evaluator:
    """Training returns losses; evaluation (3.0, LOGITS, label)."""

    def __init__(self) -> None:
        self.trained = 0
        self.modes: list[bool] = []

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        self.modes.append(target.training)
        if isinstance(target, nn.WithEvalCell):
            return Tensor(3.0), Tensor(LOGITS), args[1]
        self.trained += 1
        return Tensor(np.float32(1 / self.trained))


@pytest.fixture
def evaluator() -> Any:
    made: Any = Evaluator()
    call_handler.install(made)
    return made


def test_fit_evaluates_between_epochs(evaluator: Any, capsys: Any) -> None:
    found: list[Any] = []

    class Results(Callback):
        def on_train_epoch_end(self, run_context: Any) -> None:
            param = run_context.original_args()
            found.append((param.cur_epoch_num, param.get("metrics"), param.get("eval_results"), param.mode))
            found.append((param.cur_step_num, param.batch_num, param.net_outputs.item()))

    told = Told()
    trained = model(metrics={"acc": Accuracy()})
    trained.fit(2, data(2), data(1), valid_frequency=2, callbacks=[Results(), told, LossMonitor()])
    assert found == [
        (1, None, None, "train"), (2, 2, 0.5),
        (2, {"acc": 0.5}, {"acc": 0.5, "eval_loss": 3.0}, "train"), (4, 2, 0.25),
    ]  # fmt: skip
    assert evaluator.modes == [True, True, True, True, False]
    between = told.seen[told.seen.index("train_step_end 2.4") + 1 : told.seen.index("train_epoch_end 2.4")]
    assert between == [
        "eval_begin 2.0", "eval_epoch_begin 2.0", "eval_step_begin 2.1", "eval_step_end 2.1", "eval_epoch_end 2.1",
        "eval_end 2.1",
    ]  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Eval result: epoch 2, metrics: {'acc': 0.5}"
    assert len(lines) == 5


def test_fit_evaluates_after_the_epochs_of_a_list(evaluator: Any) -> None:
    model(metrics={"acc"}).fit(4, data(1), data(1), valid_frequency=[1, 4])
    assert evaluator.modes == [True, False, True, True, True, False]


def test_times_of_evaluations_are_told_in_fit(evaluator: Any, capsys: Any) -> None:
    model(metrics={"acc"}).fit(1, data(1), data(1), callbacks=[TimeMonitor()])
    assert [line.split(" time")[0] for line in capsys.readouterr().out.splitlines()] == ["Eval epoch", "Train epoch"]


def test_evaluation_tells_its_callbacks_and_can_be_stopped(evaluator: Any) -> None:
    told = Told()

    class Stop(Callback):
        def on_eval_step_end(self, run_context: Any) -> None:
            run_context.request_stop()

    found = model(metrics={"acc", "loss"}).eval(data(3), [told, Stop()])
    assert found == {"acc": 0.5, "loss": 3.0}
    assert told.seen == [
        "enter", "eval_begin 0.0", "eval_epoch_begin 0.0", "eval_step_begin 0.1", "eval_step_end 0.1",
        "eval_epoch_end 0.1", "eval_end 0.1", "exit",
    ]  # fmt: skip


class Given(Metric):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def clear(self) -> None:
        self.given.clear()

    @ms.train.rearrange_inputs
    def update(self, *inputs: Any) -> None:
        self.given.append([float(np.sum(self._convert_data(x))) for x in inputs])

    def eval(self) -> Any:
        return list(self.given)


@pytest.mark.parametrize(
    ("outputs", "indexes", "chosen", "expected"),
    [
        (4, None, None, [1, 2, 3, 4]),
        (4, None, [3, 0], [4, 1]),
        (4, [3, 0, 1], None, [1, 2]),
        (4, [3, 0, 1], [1], [2]),
        (3, None, None, [1, 2, 3]),
        (1, None, None, [1]),
    ],
)
def test_metrics_get_what_is_chosen_for_them(outputs: int, indexes: Any, chosen: Any, expected: Any) -> None:
    class Several:
        def call(self, target: Any, args: Any) -> Any:
            made = tuple(Tensor(float(i + 1)) for i in range(outputs))
            return made if outputs > 1 else made[0]

    several: Any = Several()
    call_handler.install(several)
    metric = Given()
    if chosen:
        metric.set_indexes(chosen)
    found = Model(Net(), metrics={"given": metric}, eval_network=Net(), eval_indexes=indexes).eval(data(1))
    assert found == {"given": [expected]}


def test_metrics_of_mspc_take_three_outputs_for_loss_output_and_label() -> None:
    class Three:
        def call(self, target: Any, args: Any) -> Any:
            return Tensor(2.0), Tensor(LOGITS), args[1]

    three: Any = Three()
    call_handler.install(three)
    metrics = {"acc": Accuracy(), "loss": Loss()}
    assert Model(Net(), metrics=metrics, eval_network=Net()).eval(data(1)) == {"acc": 0.5, "loss": 2.0}
    with pytest.raises(ValueError, match=r"Accuracy\.update takes 2 inputs, predictions and labels, not 1"):
        Model(Net(), metrics={"acc": Accuracy().set_indexes([0])}, eval_network=Net()).eval(data(1))


def test_evaluation_in_half_precision_judges_float32() -> None:
    class Kept:
        def call(self, target: Any, args: Any) -> Any:
            self.target = target
            return Tensor(2.0), Tensor(LOGITS), args[1]

    kept: Any = Kept()
    call_handler.install(kept)
    for level, widens in (("O0", False), ("O2", True), ("O3", True)):
        model(metrics={"acc"}, amp_level=level).eval(data(1))
        assert kept.target.add_cast_fp32 is widens


def test_boosts_are_said_to_change_nothing(capsys: Any) -> None:
    model(boost_level="O1")
    model(acc_level="O1", boost_config_dict={})
    build_train_network(Net(), nn.SGD(Net().trainable_params()), boost_level="O2")
    said = ["Model(boost_level='O1')", "Model(boost_config_dict=...)", "Model(acc_level=...)",
            "build_train_network(boost_level='O2')"]  # fmt: skip
    lines = [f"warning: {call} changes nothing here: no step is approximated\n" for call in said]
    assert capsys.readouterr().err == "".join(lines)


@pytest.mark.parametrize("rates", [[0.1, 0.2], Tensor(np.array([0.1, 0.2], np.float32)), [0.1] * 6, 0.1])
def test_a_list_of_rates_that_ends_before_the_training_is_warned_about(rates: Any, capsys: Any) -> None:
    net = Net()
    Model(net, nn.CrossEntropyLoss(), nn.SGD(net.trainable_params(), rates)).train(2, data())
    said = capsys.readouterr().err
    few = "Model.train: 6 steps are more than the 2 entries in the list of learning rates; further steps use the last"
    assert (few in said) == (np.size(getattr(rates, "array", rates)) == 2)
    assert "test_model.py" in said or not said


@pytest.mark.parametrize(("optimizer", "message"), [
    (None, "Model.train changes no parameter: the model has no optimizer"),
    (Net().trainable_params(), "Model.train changes no parameter: the optimizer has the parameters of another network"),
])  # fmt: skip
def test_training_that_changes_nothing_is_warned_about(optimizer: Any, message: str, capsys: Any) -> None:
    net = Net()
    made = None if optimizer is None else nn.Momentum(optimizer, 0.1, 0.9)
    Model(net, nn.CrossEntropyLoss(), made).train(1, data())
    found = capsys.readouterr().err
    assert message in found
    assert "test_model.py:" in found
    Model(net, nn.CrossEntropyLoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9)).train(1, data())
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Model(Net(), nn.MSELoss), "loss_fn is the class MSELoss"),
    (lambda: nn.MaxPool2d(2, 0), "MaxPool2d: stride must be positive, not 0"),
    (lambda: nn.AvgPool2d((2, -1)), r"AvgPool2d: kernel_size must be positive, not \(2, -1\)"),
    (lambda: nn.LayerNorm(()), "LayerNorm: normalized_shape is empty"),
])  # fmt: skip
def test_arguments_that_no_training_can_use_are_refused(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


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


def callback_data(steps: int = 2) -> Any:
    row = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    return GeneratorDataset(lambda: iter([row] * steps), ["x", "y"])


def callback_model() -> Model:
    net = Net()
    return Model(net, nn.MSELoss(), nn.SGD(net.trainable_params()))


def test_times_name_steps_and_waits(capsys: Any) -> None:
    callback_model().train(1, callback_data(), train.TimeMonitor(data_time=True))
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
