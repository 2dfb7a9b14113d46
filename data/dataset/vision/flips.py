"""These operations mirror images."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mspc.data.dataset.operation import Operation
from mspc.data.dataset.pipeline_random import Draws
from mspc.data.dataset.vision.shapes import height_axis, probability


class HorizontalFlip(Operation):
    """The image mirrored, left for right."""

    keeps_images: ClassVar[bool] = True
    axis: ClassVar[int] = 1

    def many(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        axis = height_axis(type(self).__name__, values) + self.axis
        return np.flip(values, axis)


class VerticalFlip(HorizontalFlip):
    """The image mirrored, top for bottom."""

    axis: ClassVar[int] = 0


class RandomHorizontalFlip(Operation):
    """The image mirrored left for right with probability `prob`."""

    keeps_images: ClassVar[bool] = True
    axis: ClassVar[int] = 1

    def __init__(self, prob: float = 0.5) -> None:
        self.prob = probability(type(self).__name__, prob)

    def many(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        axis = height_axis(type(self).__name__, values) + self.axis
        (rows,) = np.nonzero(draws.uniform() < self.prob)
        if not rows.size:
            return values
        result = values.copy(order="K")
        turned = (slice(None),) * (axis - 1) + (slice(None, None, -1),)
        for row in rows.tolist():
            result[row] = values[row][turned]
        return result


class RandomVerticalFlip(RandomHorizontalFlip):
    """The image mirrored top for bottom with probability `prob`."""

    axis: ClassVar[int] = 0
