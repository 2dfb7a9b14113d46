"""These operations bring images to another size."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mspc.data.dataset.nodes.block import Column
from mspc.data.dataset.operation import EachOperation
from mspc.data.dataset.pillow import resampled
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.resizing import Taps, can_enlarge, enlarged, taps
from mspc.data.dataset.vision.enums import Inter
from mspc.data.dataset.vision.shapes import inter_of, require_image, size_of


class Resize(EachOperation):
    """The image in another size: (height, width), or a number for the shorter side. Pillow's filters find the
    pixels."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, size: Any, interpolation: Inter = Inter.LINEAR) -> None:
        self.size = size_of("Resize", size)
        self.shorter = not isinstance(size, (tuple, list))
        self.interpolation = inter_of("Resize", interpolation)
        self._taps: dict[tuple[int, int], Taps] = {}

    def many(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        require_image("Resize", values.shape[1:])
        size = self._target(*values.shape[1:3])
        method = self.interpolation.filter
        if not can_enlarge(values.shape, values.dtype, size, method):
            return super().many(values, draws)
        down, across = (self._taps_of(*pair, method) for pair in zip(values.shape[1:3], size, strict=True))
        return enlarged(values, down, across)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("Resize", value.shape)
        return resampled(value, self._target(*value.shape[:2]), self.interpolation.filter)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if not self.shorter:
            return self.size
        side = self.size[0]
        return (side, side * width // height) if height <= width else (side * height // width, side)

    def _taps_of(self, there: int, wanted: int, method: str) -> Taps:
        if (there, wanted) not in self._taps:
            self._taps[there, wanted] = taps(there, wanted, method)
        return self._taps[there, wanted]
