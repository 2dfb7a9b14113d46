"""Images in another size."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mspc.api.dataset.draws import Draws
from mspc.api.dataset.operation import EachOperation
from mspc.api.dataset.pillow import resampled
from mspc.api.dataset.vision.enums import Inter
from mspc.api.dataset.vision.shapes import inter_of, size_of
from mspc.api.errors import ApiValueError


class Resize(EachOperation):
    """The image in another size: (height, width), or a number for the shorter side. Pillow's filters find the
    pixels."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, size: Any, interpolation: Inter = Inter.LINEAR) -> None:
        self.size = size_of("Resize", size)
        self.shorter = not isinstance(size, (tuple, list))
        self.interpolation = inter_of("Resize", interpolation)

    def single(self, value: np.ndarray, draws: Draws) -> np.ndarray:
        if value.ndim not in (2, 3):
            raise ApiValueError(f"Resize: an image has 2 or 3 dimensions, not shape {value.shape}")
        height, width = value.shape[:2]
        target = self.size
        if self.shorter:
            side = self.size[0]
            target = (side, side * width // height) if height <= width else (side * height // width, side)
        return resampled(value, target, self.interpolation.filter)
