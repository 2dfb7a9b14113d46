"""Callbacks of a training run: called at its beginning, at every step and epoch, and at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.types import BOOL
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.index.module import beside, names_of

__all__ = [
    "Callback", "LearningRateScheduler", "LossMonitor", "RunContext",
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


def _older(name: str) -> Callable[[Any, RunContext], None]:
    """Return the method of training and of evaluation that calls the one with this older name."""

    def call(self: Callback, run_context: RunContext) -> None:
        getattr(self, name)(run_context)

    return call


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

    on_train_begin = on_eval_begin = _older("begin")
    on_train_epoch_begin = on_eval_epoch_begin = _older("epoch_begin")
    on_train_epoch_end = on_eval_epoch_end = _older("epoch_end")
    on_train_step_begin = on_eval_step_begin = _older("step_begin")
    on_train_step_end = on_eval_step_end = _older("step_end")
    on_train_end = on_eval_end = _older("end")


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


def rate_of(name: str, optimizer: Any) -> Parameter:
    """Return the learning rate of an optimizer that has one number for all steps and parameters. Raise ValueError if it
    has none."""
    rate = getattr(optimizer, "learning_rate", None)
    if not isinstance(rate, Parameter) or rate.size != 1:
        what = "there is no optimizer" if optimizer is None else f"the learning rate of {type(optimizer).__name__}"
        reason = what if optimizer is None else f"{what} changes by a schedule or differs between parameters"
        raise ApiValueError(f"{name}: {reason}", ["give the optimizer one number as learning_rate"])
    return rate


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
        rate.set_data(Tensor(float(self.learning_rate_function(float(rate), param.cur_step_num)), rate.dtype))
