"""Learning rates as lists, one number per step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.api.errors import ApiValueError


def piecewise_constant_lr(milestone: Sequence[int], learning_rates: Sequence[float]) -> list[float]:
    """learning_rates[i] until step milestone[i]. Raises ValueError where the lists do not fit or
    milestones fall.
    """
    if len(milestone) != len(learning_rates):
        raise ApiValueError(
            f"piecewise_constant_lr: {len(milestone)} milestones, {len(learning_rates)} learning rates"
        )
    rates: list[float] = []
    for end, rate in zip(milestone, learning_rates, strict=True):
        if end <= len(rates):
            raise ApiValueError(f"piecewise_constant_lr: milestones {list(milestone)} must rise")
        rates += [float(rate)] * (end - len(rates))
    return rates


def exponential_decay_lr(
    learning_rate: float, decay_rate: float, total_step: int, step_per_epoch: int, decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:  # fmt: skip
    """learning_rate * decay_rate^(epoch / decay_epoch), the exponent whole when `is_stair`."""
    powers = [step // step_per_epoch / decay_epoch for step in range(total_step)]
    return [learning_rate * decay_rate ** (math.floor(p) if is_stair else p) for p in powers]


def natural_exp_decay_lr(
    learning_rate: float, decay_rate: float, total_step: int, step_per_epoch: int, decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:  # fmt: skip
    """learning_rate * e^(-decay_rate * epoch), epochs counted in whole decay_epochs when `is_stair`."""
    epochs = [step // step_per_epoch for step in range(total_step)]
    counted = [e // decay_epoch * decay_epoch if is_stair else e for e in epochs]
    return [learning_rate * math.exp(-decay_rate * e) for e in counted]


def cosine_decay_lr(
    min_lr: float, max_lr: float, total_step: int, step_per_epoch: int, decay_epoch: int
) -> list[float]:
    """From max_lr to min_lr along half a cosine over decay_epoch epochs."""
    epochs = [min(step // step_per_epoch, decay_epoch) for step in range(total_step)]
    return [min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * e / decay_epoch)) for e in epochs]


def polynomial_decay_lr(
    learning_rate: float, end_learning_rate: float, total_step: int, step_per_epoch: int, decay_epoch: int,
    power: float, update_decay_epoch: bool = False,
) -> list[float]:  # fmt: skip
    """(learning_rate - end) * (1 - epoch / decay_epoch)^power + end."""
    if update_decay_epoch:
        raise ApiValueError("polynomial_decay_lr: update_decay_epoch is not supported")
    epochs = [min(step // step_per_epoch, decay_epoch) for step in range(total_step)]
    return [
        (learning_rate - end_learning_rate) * (1 - e / decay_epoch) ** power + end_learning_rate
        for e in epochs
    ]


def warmup_lr(learning_rate: float, total_step: int, step_per_epoch: int, warmup_epoch: int) -> list[float]:
    """Grows evenly to learning_rate over warmup_epoch epochs."""
    epochs = [min(step // step_per_epoch, warmup_epoch) for step in range(total_step)]
    return [learning_rate * e / warmup_epoch if warmup_epoch else learning_rate for e in epochs]
