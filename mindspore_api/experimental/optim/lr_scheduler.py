"""Schedulers of `mindspore.experimental.optim`: `scheduler.step()` sets the learning rates of an optimizer's groups.
Several schedulers of one optimizer multiply. The formulas are those of PyTorch's schedulers of these names."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.index.module import beside
from mspc.ops.operator_arguments import describe


class LRScheduler:
    """Base of schedulers: `get_lr` returns the rates of `last_epoch`, computed from `_last_lr`, those of the step
    before, or from `base_lrs`, the initial rates.

    Args:
        last_epoch: -1 to begin; else the schedule continues after this step.

    Raises TypeError if it is no optimizer of `mindspore.experimental.optim`.
    """

    def __init__(self, optimizer: Any, last_epoch: int = -1) -> None:
        if not hasattr(optimizer, "param_groups"):
            wanted = "an optimizer of mindspore.experimental.optim"
            raise ApiTypeError(f"{type(self).__name__}: optimizer must be {wanted}, not {describe(optimizer)}")
        if isinstance(last_epoch, bool) or not isinstance(last_epoch, int):
            raise ApiTypeError(f"{type(self).__name__}: last_epoch must be an integer, not {describe(last_epoch)}")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", _exact(group))
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self._last_lr = [_exact(group) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    def get_lr(self) -> Sequence[float]:
        """Return the rate of each group at `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} defines no get_lr()")

    def get_last_lr(self) -> list[Tensor]:
        """Return the rates that were set last."""
        return [Tensor(_exact(group), FLOAT32) for group in self.optimizer.param_groups]

    def step(self, epoch: float | None = None) -> None:
        """Set the rates of the next step, or of step `epoch`. Raise ValueError if that is not finite."""
        if epoch is not None and not math.isfinite(epoch):
            raise ApiValueError(f"{type(self).__name__}.step: epoch must be finite, not {epoch}")
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._last_lr = [_exact(group) for group in self.optimizer.param_groups]
        self._goes_on = epoch is None and self.last_epoch > 0
        rates = [float(rate) for rate in self.get_lr()]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            _set(group, rate)
        self._last_lr = rates


def _exact(group: dict[str, Any]) -> float:
    """Return a group's rate: with all digits if a scheduler has set it."""
    held, known = float(group["lr"].asnumpy()), group.get("exact_lr")
    return known if known is not None and np.float32(known) == np.float32(held) else _shortest(held)


def _shortest(value: float) -> float:
    """Return the shortest decimal number of a Float32: 0.1 for 0.10000000149."""
    return float(str(np.float32(value)))


def _set(group: dict[str, Any], rate: float) -> None:
    group["exact_lr"] = rate
    group["lr"].set_data(Tensor(rate, FLOAT32))


class _ByFactor(LRScheduler):
    """Rates that are the first ones times `factor(step)`."""

    def factor(self, step: int) -> float:
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        now = self.factor(self.last_epoch)
        before = self.factor(self.last_epoch - 1) if self._goes_on else 0.0
        if before:
            return [rate * (now / before) for rate in self._last_lr]
        return [rate * now for rate in self.base_lrs]


class StepLR(_ByFactor):
    """gamma times the rate every step_size steps."""

    def __init__(self, optimizer: Any, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        return self.gamma ** (step // self.step_size)


class MultiStepLR(_ByFactor):
    """gamma times the rate at every milestone."""

    def __init__(self, optimizer: Any, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        if not isinstance(milestones, list | tuple) or not all(isinstance(step, int) for step in milestones):
            raise ApiTypeError(f"MultiStepLR: milestones must be a list of integers, not {describe(milestones)}")
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        return self.gamma ** bisect_right(self.milestones, step)


class LambdaLR(LRScheduler):
    """The first rates times lr_lambda(step): a function, or one for each group."""

    def __init__(self, optimizer: Any, lr_lambda: Any, last_epoch: int = -1) -> None:
        count = len(getattr(optimizer, "param_groups", ()))
        found = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * count
        if len(found) != count or not all(map(callable, found)):
            wanted = f"a function, or {count} of them"
            raise ApiValueError(f"LambdaLR: lr_lambda must be {wanted}, not {describe(lr_lambda)}")
        self.lr_lambdas: list[Callable[[int], float]] = found
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [rate * function(self.last_epoch) for rate, function in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class CosineAnnealingLR(LRScheduler):
    """From the first rate to eta_min along half a cosine, in T_max steps, and back."""

    def __init__(self, optimizer: Any, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (rate - self.eta_min) * share for rate in self.base_lrs]


__getattr__ = beside(__name__)
