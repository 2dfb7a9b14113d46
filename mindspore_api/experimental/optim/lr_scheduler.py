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


class ExponentialLR(_ByFactor):
    """gamma times the rate at every step."""

    def __init__(self, optimizer: Any, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        return self.gamma**step


class LinearLR(_ByFactor):
    """The rate times a factor that changes linearly from start_factor to end_factor in total_iters steps."""

    def __init__(
        self, optimizer: Any, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        share = min(step, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share


class PolynomialLR(_ByFactor):
    """The rate times (1 - step / total_iters)^power, 0 from step total_iters on."""

    def __init__(self, optimizer: Any, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        return (1 - min(step, self.total_iters) / self.total_iters) ** self.power


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


class CosineAnnealingWarmRestarts(LRScheduler):
    """Repeated cosines from the first rate to eta_min: the first takes T_0 steps, each other T_mult times those of the
    previous one."""

    def __init__(self, optimizer: Any, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ApiValueError(f"CosineAnnealingWarmRestarts: T_0 {T_0} and T_mult {T_mult} must be at least 1")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        inside, length = float(self.last_epoch), self.T_0
        if self.T_mult == 1:
            inside %= length
        while inside >= length:
            inside, length = inside - length, length * self.T_mult
        share = (1 + math.cos(math.pi * inside / length)) / 2
        return [self.eta_min + (rate - self.eta_min) * share for rate in self.base_lrs]


class SequentialLR:
    """Schedulers in sequence: the next one begins at every milestone."""

    def __init__(
        self, optimizer: Any, schedulers: Sequence[Any], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        if len(schedulers) != len(milestones) + 1:
            raise ApiValueError(
                f"SequentialLR: {len(schedulers)} schedulers have a milestone between each two, not {len(milestones)}"
            )
        if any(one.optimizer is not optimizer for one in schedulers):
            raise ApiValueError("SequentialLR: all schedulers must have its optimizer")
        self.optimizer, self.milestones, self._schedulers = optimizer, list(milestones), list(schedulers)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            _set(group, group["initial_lr"])
        schedulers[0].step(0)

    def step(self) -> None:
        """Set the rates of the next step."""
        self.last_epoch += 1
        place = bisect_right(self.milestones, self.last_epoch)
        begins = place > 0 and self.milestones[place - 1] == self.last_epoch
        self._schedulers[place].step(*([0] if begins else []))

    def get_last_lr(self) -> list[Tensor]:
        """Return the rates that were set last."""
        return self._schedulers[0].get_last_lr()


class ReduceLROnPlateau:
    """factor times the rates when a measure has not improved for more than `patience` steps. Improvement: "min" or
    "max", by more than threshold, relative ("rel") or absolute ("abs"). The following cooldown steps are ignored.
    min_lr: the lower bound of the rate, or one for each group; changes below eps are skipped."""

    def __init__(
        self, optimizer: Any, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
        threshold_mode: str = "rel", cooldown: int = 0, min_lr: Any = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ApiValueError(
                f"ReduceLROnPlateau: mode {mode!r} must be 'min' or 'max', threshold_mode {threshold_mode!r} 'rel' or "
                "'abs'"
            )
        if factor >= 1.0:
            raise ApiValueError(f"ReduceLROnPlateau: factor must be below 1, not {factor}")
        self.optimizer, self.factor, self.patience, self.cooldown, self.eps = optimizer, factor, patience, cooldown, eps
        count = len(optimizer.param_groups)
        self.min_lrs = list(min_lr) if isinstance(min_lr, list | tuple) else [min_lr] * count
        if len(self.min_lrs) != count or not all(isinstance(least, int | float) for least in self.min_lrs):
            wanted = f"a number, or {count} of them"
            raise ApiTypeError(f"ReduceLROnPlateau: min_lr must be {wanted}, not {describe(min_lr)}")
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def _is_better(self, value: float) -> bool:
        margin = abs(self.best) * self.threshold if self.threshold_mode == "rel" else self.threshold
        if math.isinf(self.best):
            return value != self.best
        return value < self.best - margin if self.mode == "min" else value > self.best + margin

    def step(self, metrics: Any) -> None:
        """Record a measure, and set the rates."""
        value = float(metrics.asnumpy() if isinstance(metrics, Tensor) else metrics)
        self.last_epoch += 1
        is_better = self._is_better(value)
        self.best = value if is_better else self.best
        self.num_bad_epochs = 0 if is_better or self.in_cooldown else self.num_bad_epochs + 1
        self.cooldown_counter = max(self.cooldown_counter - 1, 0)
        if self.num_bad_epochs <= self.patience:
            return
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            now = _exact(group)
            rate = max(now * self.factor, least)
            if now - rate > self.eps:
                _set(group, rate)
        self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    @property
    def in_cooldown(self) -> bool:
        """Return whether steps do not count now."""
        return self.cooldown_counter > 0

    def get_last_lr(self) -> list[Tensor]:
        """Return the current rates."""
        return [Tensor(_exact(group), FLOAT32) for group in self.optimizer.param_groups]


__getattr__ = beside(__name__)
