"""These callbacks act where a number no longer improves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.api import call_handler
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.setting_kind import say_once
from mspc.api.train.callback_base import Callback, RunContext, loss_of, write_line
from mspc.api.train.learning_rates import rate_of, set_rate
from mspc.api.train.rank_agreement import feeds_own_rows

__all__ = ["EarlyStopping", "ReduceLROnPlateau"]

SMALLER_IS_BETTER = ("loss", "eval_loss", "mae", "mse", "perplexity")


class _Monitored(Callback):
    """Looks at a number at the end of every epoch: "loss", the last step's, or "eval_loss" and the metrics of
    `Model.fit`. Ranks that each have a loss of their own look at their mean, so that all act alike."""

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
        """Whether `value` is better than `best` by more than min_delta."""
        return value < best - self.min_delta if self._falls else value > best + self.min_delta

    def on_train_begin(self, run_context: RunContext) -> None:
        self.wait = 0
        self.best = self._worst

    def _value(self, run_context: RunContext) -> float | None:
        """The number as it is now; None, with one warning, where there is none."""
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
        monitor: "loss", or with `Model.fit` "eval_loss" or the name of a metric. min_delta: what less than that is
            no improvement.
        verbose: print when it happens. mode: "min" or "max" is better; "auto" knows losses and errors.
        baseline: an improvement only counts beyond it. restore_best_weights: go back to those of the best epoch.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(
        self, monitor: str = "eval_loss", min_delta: float = 0, patience: int = 0, verbose: bool = False,
        mode: str = "auto", baseline: float | None = None, restore_best_weights: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode, min_delta, patience, verbose)
        if not isinstance(restore_best_weights, bool):
            raise ApiTypeError(
                f"EarlyStopping: restore_best_weights must be True or False, not {restore_best_weights!r}"
            )
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
        monitor, mode, verbose, min_delta: as for EarlyStopping. cooldown: so many epochs after that are not counted.
        min_lr: the rate becomes no smaller.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind, or, when an epoch ends, the learning rate is no single
        number.
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
