"""Callbacks of a training run: called at its beginning, at every step and epoch, and at its end."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.types import BOOL
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import feeds_own_rows
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.index.module import beside, names_of
from mspc.mindspore_api.setting_kind import say_once

__all__ = [
    "Callback", "EarlyStopping", "LearningRateScheduler", "LossMonitor", "ReduceLROnPlateau", "RunContext",
    "TimeMonitor",
]  # fmt: skip
__all__ += names_of("train.callback")


class CallbackParam(dict[str, Any]):
    """Facts of the run, as attributes: cur_epoch_num, cur_step_num, batch_num, net_outputs, ..."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RunContext:
    """Facts of a run for callbacks. Raise TypeError if `original_args` is no dict."""

    def __init__(self, original_args: Any) -> None:
        if not isinstance(original_args, dict):
            raise ApiTypeError(f"RunContext takes a dict, not {type(original_args).__name__}")
        self._args: Any = original_args
        self._stop = False

    def original_args(self) -> Any:
        """Return the facts of the run."""
        return self._args

    def request_stop(self) -> None:
        """End training after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        return self._stop


class Callback:
    """Base of callbacks with the methods that Model calls; subclasses override the methods they need.

    The names without `on_train_` or `on_eval_` are MindSpore's older ones and are called by the newer ones. As a
    context, a callback is entered before the run and left after it, however it ends.
    """

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def begin(self, run_context: RunContext) -> None: ...
    def epoch_begin(self, run_context: RunContext) -> None: ...
    def epoch_end(self, run_context: RunContext) -> None: ...
    def step_begin(self, run_context: RunContext) -> None: ...
    def step_end(self, run_context: RunContext) -> None: ...
    def end(self, run_context: RunContext) -> None: ...

    def on_train_begin(self, run_context: RunContext) -> None:
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        self.epoch_begin(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        self.epoch_end(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        self.step_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        self.epoch_begin(run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        self.epoch_end(run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        self.step_begin(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        self.step_end(run_context)

    def on_eval_end(self, run_context: RunContext) -> None:
        self.end(run_context)


OLDER = ("begin", "end", "epoch_begin", "epoch_end", "step_begin", "step_end")
"""Methods that training and evaluation both call."""


def callbacks_of(callbacks: Any) -> list[Callback]:
    """Return the callbacks of a run, given as None, one, or several. Raise TypeError for anything else."""
    found = [] if callbacks is None else list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    for entry in found:
        if not isinstance(entry, Callback):
            raise ApiTypeError(f"callbacks takes Callbacks, not {type(entry).__name__}")
    return found


class CallbackManager:
    """Callbacks of a run while it lasts."""

    def __init__(self, callbacks: Iterable[Callback], run: RunContext) -> None:
        self._callbacks = list(callbacks)
        self._run = run
        self._stack = ExitStack()

    def __enter__(self) -> CallbackManager:
        self._stack.__enter__()
        entered = [(self._stack.enter_context(callback), callback) for callback in self._callbacks]
        self._callbacks = [inner if isinstance(inner, Callback) else given for inner, given in entered]
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._stack.__exit__(*error)

    def tell(self, event: str) -> None:
        """Call the method `event` of every callback."""
        for callback in self._callbacks:
            getattr(callback, event)(self._run)


def loss_of(outputs: Any) -> Any:
    """Return the loss among the outputs of a step, a NumPy number with a shortest-text str, or None without a loss."""
    if isinstance(outputs, (tuple, list)):
        outputs = outputs[0] if outputs else None
    if isinstance(outputs, Tensor):
        value = outputs.array
        return value.reshape(-1)[0] if value.size == 1 else value.mean(dtype=value.dtype)
    return outputs if isinstance(outputs, (int, float, np.generic)) else None


def write_line(text: str) -> None:
    """Print a line by one write: lines of several ranks must not mix."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


InternalCallbackParam = _InternalCallbackParam = CallbackParam
"""Its names in scripts with loops of their own."""


__getattr__ = beside(__name__)


def set_cur_net(net: Any) -> None:
    """Do nothing: code that saves a network gets it as an argument here."""


class LossMonitor(Callback):
    """Prints `epoch: 1 step: 1, loss is 0.25` at every `per_print_times`-th step, with the shortest text of the number;
    if `Model.fit` has evaluated, `Eval result: epoch 1, metrics: {...}` at the end of the epoch.

    A loss that is NaN or infinite ends training with an ExecutionError, unless the step was skipped because of an
    overflow.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        if isinstance(per_print_times, bool) or not isinstance(per_print_times, int) or per_print_times < 0:
            raise ApiValueError(f"LossMonitor: per_print_times {per_print_times!r} must be an integer, 0 or more")
        self._every = per_print_times
        self._last = 0

    def step_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        loss = loss_of(param.net_outputs)
        epoch, step = param.get("cur_epoch_num", 1), (param.cur_step_num - 1) % param.batch_num + 1
        if loss is not None and not np.isfinite(loss) and not _left_out(param.net_outputs):
            raise ExecutionError(f"epoch: {epoch} step: {step}, loss is {loss!s}: training stops")
        if param.get("mode") == "eval" or not self._every:
            return
        if param.cur_step_num <= self._last:
            self._last = 0
        if param.cur_step_num - self._last >= self._every:
            self._last = param.cur_step_num
            write_line(f"epoch: {epoch} step: {step}, loss is {loss!s}")

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        if param.get("eval_results"):
            write_line(f"Eval result: epoch {param.cur_epoch_num}, metrics: {param.metrics}")


def _left_out(outputs: Any) -> bool:
    """Return whether these are the results of a step with a loss scale that has found an overflow: (loss, True,
    scale)."""
    if not isinstance(outputs, (tuple, list)) or len(outputs) < 3 or not isinstance(outputs[1], Tensor):
        return False
    return outputs[1].dtype == BOOL and outputs[1].size == 1 and bool(np.asarray(outputs[1].array).flat[0])


class TimeMonitor(Callback):
    """Prints the duration of every epoch and of its steps, in milliseconds.

    Args:
        data_size: steps of an epoch, if the run does not know them.
        data_time: also print the time that a step waited for its data; not in sink mode, which has no callback between
            steps.

    Raises TypeError or ValueError if an argument is of the wrong kind.
    """

    def __init__(self, data_size: int | None = None, data_time: bool = False) -> None:
        if data_size is not None and data_size < 1:
            raise ApiValueError(f"TimeMonitor: data_size {data_size!r} must be a positive integer")
        self.data_size = data_size
        self.data_time = data_time
        self._clocks: list[_Clock] = []

    def on_train_begin(self, run_context: RunContext) -> None:
        self._clocks.clear()

    def epoch_begin(self, run_context: RunContext) -> None:
        self._clocks.append(_Clock())

    def step_begin(self, run_context: RunContext) -> None:
        for clock in self._clocks[-1:]:
            clock.waited += time.perf_counter() - clock.asked

    def step_end(self, run_context: RunContext) -> None:
        for clock in self._clocks[-1:]:
            clock.asked = time.perf_counter()

    def epoch_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        clock = self._clocks.pop()
        spent = time.perf_counter() - clock.start
        for outer in self._clocks[-1:]:
            outer.start += spent  # an evaluation between epochs is no part of training
        steps = param.get("batch_num") or self.data_size or 1
        mode = param.get("mode", "train").title()
        text = f"{mode} epoch time: {spent * 1000:5.3f} ms, per step time: {spent * 1000 / steps:5.3f} ms"
        if self.data_time and not param.get("dataset_sink_mode"):
            text += f" (data time: {clock.waited * 1000 / steps:5.3f} ms)"
        write_line(text)


class _Clock:
    """Start of the epoch, start of waiting for data, and total time of waiting for data, in seconds."""

    def __init__(self) -> None:
        self.start = self.asked = time.perf_counter()
        self.waited = 0.0


SMALLER_IS_BETTER = ("loss", "eval_loss", "mae", "mse", "perplexity")


class _Monitored(Callback):
    """Monitors a number at the end of every epoch: "loss", the last step's, or "eval_loss" and the metrics of
    `Model.fit`. Ranks with different losses use their mean, so that all act alike."""

    def __init__(self, monitor: Any, mode: Any, min_delta: Any, patience: Any, verbose: Any) -> None:
        name = type(self).__name__
        if not isinstance(monitor, str):
            raise ApiTypeError(f"{name}: monitor must be a string, not {monitor!r}")
        if mode not in ("auto", "min", "max"):
            raise ApiValueError(f"{name}: mode {mode!r} is none of 'auto', 'min', 'max'")
        if not isinstance(verbose, bool):
            raise ApiTypeError(f"{name}: verbose must be True or False, not {verbose!r}")
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(_number(name, "min_delta", min_delta))
        self.patience = _count(name, "patience", patience)
        self.verbose = verbose
        self.wait = 0
        self.best = self._worst

    @property
    def _falls(self) -> bool:
        return self.mode == "min" or (self.mode == "auto" and self.monitor in SMALLER_IS_BETTER)

    @property
    def _worst(self) -> float:
        return math.inf if self._falls else -math.inf

    def is_improvement(self, value: float, best: float) -> bool:
        """Return whether `value` is better than `best` by more than min_delta."""
        return value < best - self.min_delta if self._falls else value > best + self.min_delta

    def on_train_begin(self, run_context: RunContext) -> None:
        self.wait = 0
        self.best = self._worst

    def _value(self, run_context: RunContext) -> float | None:
        """Return the current number; None, with one warning, if there is none."""
        param = run_context.original_args()
        results = param.get("eval_results") or {}
        value = loss_of(param.net_outputs) if self.monitor == "loss" else results.get(self.monitor)
        name = type(self).__name__
        if value is None:
            known = ", ".join(["loss", *(key for key in results if key != "loss")])
            text = f"{name} looks at {self.monitor!r}, which is not there at the end of epoch {param.cur_epoch_num}"
            say_once(f"{name} {self.monitor}", f"{text}; there is {known}; Model.fit evaluates")
            return None
        if np.size(value) != 1:
            raise ApiValueError(f"{name}: {self.monitor!r} is an array of shape {np.shape(value)}, not one number")
        number = float(np.asarray(value, np.float64).reshape(()))
        if self.monitor != "loss" or not feeds_own_rows(param.train_network):
            return number
        numbers = call_handler.current().of_all_ranks(number)
        return sum(numbers) / len(numbers)


class EarlyStopping(_Monitored):
    """Ends training after `patience` epochs (at least 1) without an improvement.

    Args:
        monitor: "loss", or with `Model.fit` "eval_loss" or the name of a metric. min_delta: a smaller change is no
            improvement.
        verbose: print when it happens. mode: "min" or "max" is better; "auto" knows losses and errors.
        baseline: an improvement must exceed it. restore_best_weights: restore those of the best epoch.

    Raises TypeError or ValueError if an argument is of the wrong kind.
    """

    def __init__(
        self, monitor: str = "eval_loss", min_delta: float = 0, patience: int = 0, verbose: bool = False,
        mode: str = "auto", baseline: float | None = None, restore_best_weights: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode, min_delta, patience, verbose)
        self.baseline = None if baseline is None else _number("EarlyStopping", "baseline", baseline)
        self.restore_best_weights = restore_best_weights
        self.stopped_epoch = 0
        self._best: dict[str, np.ndarray] = {}

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        self.stopped_epoch = 0
        self._best = {}

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        value = self._value(run_context)
        if value is None:
            return
        network = run_context.original_args().train_network
        better = self.is_improvement(value, self.best)
        if better:
            self.best = value
        if self.restore_best_weights and (better or not self._best):
            self._best = {p.name: np.array(p.asnumpy()) for p in network.get_parameters()}
        if better and (self.baseline is None or self.is_improvement(value, self.baseline)):
            self.wait = 0
            return
        self.wait += 1
        if self.wait < self.patience:
            return
        self.stopped_epoch = run_context.original_args().cur_epoch_num
        run_context.request_stop()
        if self.restore_best_weights:
            if self.verbose:
                write_line("Restoring model weights from the end of the best epoch.")
            for parameter in network.get_parameters():
                parameter.set_data(self._best[parameter.name])

    def on_train_end(self, run_context: RunContext) -> None:
        if self.stopped_epoch and self.verbose:
            write_line(f"Epoch {self.stopped_epoch:05d}: early stopping")


class ReduceLROnPlateau(_Monitored):
    """Multiplies the learning rate by `factor` after `patience` epochs without an improvement.

    Args:
        monitor, mode, verbose, min_delta: as for EarlyStopping. cooldown: number of epochs to ignore after a reduction.
            min_lr: lower bound of the rate.

    Raises TypeError or ValueError if an argument is of the wrong kind, or, when an epoch ends, the learning rate is no
    single number.
    """

    def __init__(
        self, monitor: str = "eval_loss", factor: float = 0.1, patience: int = 10, verbose: bool = False,
        mode: str = "auto", min_delta: float = 1e-4, cooldown: int = 0, min_lr: float = 0,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode, min_delta, patience, verbose)
        name = "ReduceLROnPlateau"
        self.factor = _number(name, "factor", factor)
        if not 0 < self.factor < 1:
            raise ApiValueError(f"{name}: factor {factor!r} must be above 0 and below 1")
        self.cooldown = _count(name, "cooldown", cooldown)
        self.min_lr = _number(name, "min_lr", min_lr)
        self.cooldown_counter = 0

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        self.cooldown_counter = 0

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        rate = rate_of("ReduceLROnPlateau", param.get("optimizer"))
        value = self._value(run_context)
        if value is None:
            return
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.wait = 0
        if self.is_improvement(value, self.best):
            self.best = value
            self.wait = 0
            return
        if self.cooldown_counter:
            return
        self.wait += 1
        if self.wait < self.patience:
            return
        self.cooldown_counter = self.cooldown
        self.wait = 0
        if float(rate) > self.min_lr:
            set_rate(rate, max(float(rate) * self.factor, self.min_lr))
            if self.verbose:
                shown = np.float32(float(rate))
                write_line(f"Epoch {param.cur_epoch_num:05d}: ReduceLROnPlateau reducing learning rate to {shown!s}.")


def _number(name: str, what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ApiTypeError(f"{name}: {what} must be a number, not {value!r}")
    return float(value)


def _count(name: str, what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ApiValueError(f"{name}: {what} {value!r} must be an integer, 0 or more")
    return value


def rate_of(name: str, optimizer: Any) -> Parameter:
    """Return the learning rate of an optimizer that has one number for all steps and parameters. Raise ValueError if it
    has none."""
    rate = getattr(optimizer, "learning_rate", None)
    if not isinstance(rate, Parameter) or rate.size != 1:
        what = "there is no optimizer" if optimizer is None else f"the learning rate of {type(optimizer).__name__}"
        reason = what if optimizer is None else f"{what} changes by a schedule or differs between parameters"
        raise ApiValueError(f"{name}: {reason}", ["give the optimizer one number as learning_rate"])
    return rate


def set_rate(rate: Parameter, value: Any) -> None:
    """Set the learning rate from the next step on."""
    rate.set_data(Tensor(float(value), rate.dtype))


class LearningRateScheduler(Callback):
    """Sets the learning rate after every step: `learning_rate_function(learning_rate, cur_step_num)`. Raise TypeError
    if it is no function."""

    def __init__(self, learning_rate_function: Callable[[float, int], float]) -> None:
        if not callable(learning_rate_function):
            raise ApiTypeError(
                f"LearningRateScheduler takes a function of (learning_rate, step), not {learning_rate_function!r}"
            )
        self.learning_rate_function = learning_rate_function

    def on_train_step_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        rate = rate_of("LearningRateScheduler", param.get("optimizer"))
        set_rate(rate, self.learning_rate_function(float(rate), param.cur_step_num))
