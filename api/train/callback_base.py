"""This module has the base of callbacks, and what they are told of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError

__all__ = ["Callback", "CallbackParam", "RunContext"]


class CallbackParam(dict[str, Any]):
    """What is known about the run, as attributes: cur_epoch_num, cur_step_num, batch_num, net_outputs, ..."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RunContext:
    """A run as callbacks see it. Raises TypeError where `original_args` is no dict."""

    def __init__(self, original_args: Any) -> None:
        if not isinstance(original_args, dict):
            raise ApiTypeError(f"RunContext takes a dict, not {type(original_args).__name__}")
        self._args: Any = original_args
        self._stop = False

    def original_args(self) -> Any:
        """What is known about the run."""
        return self._args

    def request_stop(self) -> None:
        """End training after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        return self._stop


class Callback:
    """Methods that Model calls; subclasses override what they need.

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
    """The callbacks of a run, given as None, one, or several. Raises TypeError for anything else."""
    found = [] if callbacks is None else list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    for entry in found:
        if not isinstance(entry, Callback):
            raise ApiTypeError(f"callbacks takes Callbacks, not {type(entry).__name__}")
    return found


class CallbackManager:
    """The callbacks of a run while it lasts; `bar` is out of the way whenever they write."""

    def __init__(self, callbacks: Iterable[Callback], run: RunContext, bar: Any) -> None:
        self._callbacks = list(callbacks)
        self._run = run
        self._bar = bar
        self._stack = ExitStack()

    def __enter__(self) -> CallbackManager:
        self._stack.__enter__()
        entered = [(self._stack.enter_context(callback), callback) for callback in self._callbacks]
        self._callbacks = [inner if isinstance(inner, Callback) else given for inner, given in entered]
        self._stack.callback(self._bar.end)  # the first to go: callbacks may write when they are left
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._stack.__exit__(*error)

    def tell(self, event: str) -> None:
        """Call the method `event` of every callback."""
        if not self._callbacks:
            return
        with self._bar.away():
            for callback in self._callbacks:
                getattr(callback, event)(self._run)


def loss_of(outputs: Any) -> Any:
    """The loss among the outputs of a step, a NumPy number whose str is its shortest text; None
    without one.
    """
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
