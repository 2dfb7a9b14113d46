"""These operations bring images to another size."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mspc.data.dataset.nodes.block import Column, column_of
from mspc.data.dataset.operation import Operation
from mspc.data.dataset.pillow import resampled
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.resizing import resized
from mspc.data.dataset.vision.enums import Inter
from mspc.data.dataset.vision.shapes import inter_of, require_image, size_of


class Resize(Operation):
    """The image in another size: (height, width), or a number for the shorter side. An array has the numbers of OpenCV,
    an image of Pillow those of Pillow's filters."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, size: Any, interpolation: Inter = Inter.LINEAR) -> None:
        self.size = size_of("Resize", size)
        self.shorter = not isinstance(size, (tuple, list))
        self.interpolation = inter_of("Resize", interpolation)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        require_image("Resize", values.shape[1:])
        return resized(values, self._target(*values.shape[1:3]), self.interpolation)

    def many_images(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        size = self._target(*values.shape[1:3])
        return column_of([resampled(value, size, self.interpolation.filter) for value in values])

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if not self.shorter:
            return self.size
        side = self.size[0]
        return (side, side * width // height) if height <= width else (side * height // width, side)

