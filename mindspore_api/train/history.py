"""Callbacks that record a training run: losses, summaries, utilization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.mindspore_api.train.callback import Callback, RunContext


class History(Callback):
    """Records, for every epoch, the mean of the last step's first output and the metrics of `Model.fit`.

    history: lists by name, "net_output" and the metrics' names. epoch: {"epoch": the epochs' numbers}.
    """

    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {}
        self.epoch: dict[str, list[int]] | None = None

    def on_train_begin(self, run_context: RunContext) -> None:
        self.epoch = {"epoch": []}

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        if self.epoch is None:
            self.epoch = {"epoch": []}
        self.epoch["epoch"].append(param.get("cur_epoch_num", 1))
        output = param.net_outputs
        if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
            output = output[0]
        if isinstance(output, Tensor):
            output = np.mean(output.asnumpy())
        for name, value in {"net_output": output, **(param.get("metrics") or {})}.items():
            self.history.setdefault(name, []).append(value)


_EVENTS = tuple(
    f"on_{mode}_{event}"
    for mode in ("train", "eval")
    for event in ("epoch_begin", "epoch_end", "step_begin", "step_end", "begin", "end")
)


class LambdaCallback(Callback):
    """Calls functions of one argument, the run's context: `LambdaCallback(on_train_epoch_end=function, ...)`.

    Args: a function or None for each of on_train_ and on_eval_ epoch_begin, epoch_end, step_begin, step_end, begin and
    end, in this order.

    Raises TypeError if an argument is neither a function nor None, or has another name.
    """

    def __init__(self, *functions: Any, **named: Any) -> None:
        given = dict(zip(_EVENTS, functions, strict=False)) | named
        if len(functions) > len(_EVENTS) or not given.keys() <= set(_EVENTS):
            unknown = next((name for name in named if name not in _EVENTS), f"argument {len(functions)}")
            raise ApiTypeError(f"LambdaCallback has no {unknown}; it takes {', '.join(_EVENTS)}")
        for event in _EVENTS:
            setattr(self, event, _called(event, given.get(event)))


def _called(event: str, function: Any) -> Callable[[RunContext], None]:
    if function is None:
        return _nothing
    if not callable(function):
        raise ApiTypeError(f"LambdaCallback: {event} must be a function, not {function!r}")
    return function


def _nothing(run_context: RunContext) -> None: ...


class SummaryCollector(Callback):
    """MindSpore's records for its viewer; none are written, as a warning says."""

    def __init__(self, summary_dir: str = "", *_: Any, **__: Any) -> None:
        say_once(
            "SummaryCollector",
            f"SummaryCollector({summary_dir!r}) writes nothing here; LossMonitor, TimeMonitor and History say how "
            "training goes",
        )


class SummaryRecord:
    """MindSpore's writer of values for its viewer; accepts values and writes none, as a warning says."""

    def __init__(self, log_dir: str, *_: Any, **__: Any) -> None:
        say_once(
            "SummaryRecord",
            f"{place_of_caller()}SummaryRecord({log_dir!r}) writes nothing here; LossMonitor, TimeMonitor and History "
            "say how training goes",
        )
        self.log_dir = str(log_dir)

    def __enter__(self) -> SummaryRecord:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_value(self, *_: Any, **__: Any) -> None:
        """Accept a value of the next record."""

    def set_mode(self, *_: Any, **__: Any) -> None:
        """Return whether values are of training or of an evaluation."""

    def record(self, *_: Any, **__: Any) -> bool:
        """Return whether the values of a step were written: False."""
        return False

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
