"""Changing learning rates: cells that compute them from the step, and lists of them."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import flag, number, positive


class LearningRateSchedule(Cell):
    """Computes the learning rate from `global_step`, a tensor with one integer."""

    def construct(self, global_step: Any) -> Any:
        raise NotImplementedError


class _Decay(LearningRateSchedule):
    """A rate that falls by `decay_rate` over `decay_steps` steps, stepwise with `is_stair`."""

    def __init__(self, learning_rate: float, decay_rate: float, decay_steps: int, is_stair: bool = False) -> None:
        super().__init__()
        name = type(self).__name__
        self.learning_rate = number(name, "learning_rate", learning_rate, above=0.0)
        self.decay_rate = number(name, "decay_rate", decay_rate, above=0.0)
        self.decay_steps = positive(name, "decay_steps", decay_steps)
        self.is_stair = flag(name, "is_stair", is_stair)

    def share(self, global_step: Any) -> Any:
        """Return the number of times that `decay_steps` steps are done, an integer with `is_stair`."""
        done = ops.cast(global_step, FLOAT32) / self.decay_steps
        return ops.floor(done) if self.is_stair else done


class ExponentialDecayLR(_Decay):
    """learning_rate * decay_rate^(step / decay_steps), the exponent whole when `is_stair`."""

    def construct(self, global_step: Any) -> Any:
        return ops.exp(self.share(global_step) * math.log(self.decay_rate)) * self.learning_rate


class CosineDecayLR(LearningRateSchedule):
    """From max_lr to min_lr along half a cosine over decay_steps steps."""

    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        super().__init__()
        self.min_lr = number("CosineDecayLR", "min_lr", min_lr)
        self.max_lr = number("CosineDecayLR", "max_lr", max_lr, above=self.min_lr)
        self.decay_steps = positive("CosineDecayLR", "decay_steps", decay_steps)

    def construct(self, global_step: Any) -> Any:
        share = ops.minimum(ops.cast(global_step, FLOAT32) / self.decay_steps, 1.0)
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1.0 + ops.cos(share * math.pi))


class WarmUpLR(LearningRateSchedule):
    """Grows evenly to learning_rate over warmup_steps steps."""

    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        super().__init__()
        self.learning_rate = number("WarmUpLR", "learning_rate", learning_rate)
        self.warmup_steps = positive("WarmUpLR", "warmup_steps", warmup_steps)

    def construct(self, global_step: Any) -> Any:
        return ops.minimum(ops.cast(global_step, FLOAT32) / self.warmup_steps, 1.0) * self.learning_rate


class PolynomialDecayLR(LearningRateSchedule):
    """(learning_rate - end) * (1 - step / decay_steps)^power + end. With update_decay_steps, decay_steps grows to its
    next multiple once the step has passed it."""

    def __init__(
        self, learning_rate: float, end_learning_rate: float, decay_steps: int, power: float,
        update_decay_steps: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        name = "PolynomialDecayLR"
        self.learning_rate = number(name, "learning_rate", learning_rate, above=0.0)
        self.end_learning_rate = number(name, "end_learning_rate", end_learning_rate)
        self.decay_steps = positive(name, "decay_steps", decay_steps)
        self.power = number(name, "power", power, above=0.0)
        self.update_decay_steps = flag(name, "update_decay_steps", update_decay_steps)

    def construct(self, global_step: Any) -> Any:
        share = ops.cast(global_step, FLOAT32) / self.decay_steps
        if self.update_decay_steps:
            share = share / ops.maximum(ops.ceil(share), 1.0)
        else:
            share = ops.minimum(share, 1.0)
        left = ops.pow(1.0 - share, self.power)
        return (self.learning_rate - self.end_learning_rate) * left + self.end_learning_rate


_MAX_STEPS = 2**31 - 1


def exponential_decay_lr(
    learning_rate: float, decay_rate: float, total_step: int, step_per_epoch: int, decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:  # fmt: skip
    """learning_rate * decay_rate^(epoch / decay_epoch), the exponent whole when `is_stair`."""
    name = "exponential_decay_lr"
    number(name, "learning_rate", learning_rate, above=0.0)
    number(name, "decay_rate", decay_rate, above=0.0)
    shares = _shares(name, total_step, step_per_epoch, decay_epoch, is_stair)
    return [learning_rate * decay_rate**share for share in shares]


def cosine_decay_lr(
    min_lr: float, max_lr: float, total_step: int, step_per_epoch: int, decay_epoch: int
) -> list[float]:
    """Return rates from max_lr to min_lr along half a cosine over decay_epoch epochs."""
    name = "cosine_decay_lr"
    number(name, "max_lr", max_lr, above=number(name, "min_lr", min_lr))
    shares = _shares(name, total_step, step_per_epoch, decay_epoch)
    return [min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * min(share, 1.0))) for share in shares]


def _shares(name: str, total_step: int, step_per_epoch: int, epochs: int, is_stair: bool = False) -> list[float]:
    """Return for every step the number of times that `epochs` epochs are done before it, an integer with `is_stair`."""
    if positive(name, "total_step", total_step) > _MAX_STEPS:
        raise ApiValueError(
            f"{name}: total_step {total_step} must be at most {_MAX_STEPS}, as the list has so many numbers"
        )
    positive(name, "step_per_epoch", step_per_epoch)
    positive(name, "decay_epoch", epochs)
    in_stairs = flag(name, "is_stair", is_stair)
    done = (step // step_per_epoch for step in range(total_step))
    return [epoch // epochs if in_stairs else epoch / epochs for epoch in done]
