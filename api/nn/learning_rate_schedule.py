"""Learning rates that are computed from the number of the step, inside the graph."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.nn.cell import Cell
from mspc.ir.types import FLOAT32


class LearningRateSchedule(Cell):
    """Computes the learning rate from `global_step`, a tensor with one integer."""

    def construct(self, global_step: Any) -> Any:
        raise NotImplementedError


class ExponentialDecayLR(LearningRateSchedule):
    """learning_rate * decay_rate^(step / decay_steps), the exponent whole when `is_stair`."""

    def __init__(
        self, learning_rate: float, decay_rate: float, decay_steps: int, is_stair: bool = False
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.decay_rate = decay_rate
        self.decay_steps = decay_steps
        self.is_stair = is_stair

    def construct(self, global_step: Any) -> Any:
        exponent = ops.cast(global_step, FLOAT32) / self.decay_steps
        if self.is_stair:
            exponent = ops.floor(exponent)
        return ops.exp(exponent * math.log(self.decay_rate)) * self.learning_rate


class CosineDecayLR(LearningRateSchedule):
    """From max_lr to min_lr along half a cosine over decay_steps steps."""

    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        super().__init__()
        self.min_lr = min_lr
        self.max_lr = max_lr
        self.decay_steps = decay_steps

    def construct(self, global_step: Any) -> Any:
        share = ops.minimum(ops.cast(global_step, FLOAT32) / self.decay_steps, 1.0)
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1.0 + ops.cos(share * math.pi))


class WarmUpLR(LearningRateSchedule):
    """Grows evenly to learning_rate over warmup_steps steps."""

    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps

    def construct(self, global_step: Any) -> Any:
        return ops.minimum(ops.cast(global_step, FLOAT32) / self.warmup_steps, 1.0) * self.learning_rate


class PolynomialDecayLR(LearningRateSchedule):
    """(learning_rate - end) * (1 - step / decay_steps)^power + end."""

    def __init__(
        self, learning_rate: float, end_learning_rate: float, decay_steps: int, power: float
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.end_learning_rate = end_learning_rate
        self.decay_steps = decay_steps
        self.power = power

    def construct(self, global_step: Any) -> Any:
        share = ops.minimum(ops.cast(global_step, FLOAT32) / self.decay_steps, 1.0)
        left = ops.pow(1.0 - share, self.power)
        return (self.learning_rate - self.end_learning_rate) * left + self.end_learning_rate
