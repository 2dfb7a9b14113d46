"""Callbacks do what happens beside training, at its steps and epochs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.index.module import beside, names_of
from mspc.api.train.callback_base import Callback, CallbackParam, RunContext, loss_of, write_line
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.types import BOOL

_BESIDE = names_of("train.callback")
__all__ = ["Callback", "LossMonitor", "RunContext", "TimeMonitor", *_BESIDE]

InternalCallbackParam = _InternalCallbackParam = CallbackParam
"""Its names in scripts with loops of their own."""


__getattr__ = beside(__name__)


def set_cur_net(net: Any) -> None:
    """Nothing has to be stored: what saves a network here is handed it."""


class LossMonitor(Callback):
    """Prints `epoch: 1 step: 1, loss is 0.25` at every `per_print_times`-th step, the shortest text of
    the number; where `Model.fit` has evaluated, `Eval result: epoch 1, metrics: {...}` at the end of the epoch.

    A loss that is NaN or infinite ends training with an ExecutionError, unless the step was left out for an overflow.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        if isinstance(per_print_times, bool) or not isinstance(per_print_times, int) or per_print_times < 0:
            raise ApiValueError(
                f"LossMonitor: per_print_times {per_print_times!r} must be an integer, 0 or more"
            )
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
    """Whether these are the results of a step with a loss scale, which has found an overflow: (loss, True, scale)."""
    if not isinstance(outputs, (tuple, list)) or len(outputs) < 3 or not isinstance(outputs[1], Tensor):
        return False
    return outputs[1].dtype == BOOL and outputs[1].size == 1 and bool(np.asarray(outputs[1].array).flat[0])


class TimeMonitor(Callback):
    """Prints how long every epoch and its steps took, in milliseconds.

    Args:
        data_size: steps of an epoch, where the run does not know them.
        data_time: say how long a step waited for its data, too; not in sink mode, where nobody asks between steps.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(self, data_size: int | None = None, data_time: bool = False) -> None:
        if data_size is not None and (isinstance(data_size, bool) or not isinstance(data_size, int) or data_size < 1):
            raise ApiValueError(f"TimeMonitor: data_size {data_size!r} must be a positive integer")
        if not isinstance(data_time, bool):
            raise ApiTypeError(f"TimeMonitor: data_time must be True or False, not {data_time!r}")
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
    """Since when an epoch runs, since when it waits for data, and how long it has waited for them, in seconds."""

    def __init__(self) -> None:
        self.start = self.asked = time.perf_counter()
        self.waited = 0.0
