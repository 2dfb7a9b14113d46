"""These operations take several parts of one image: its corners and its middle."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import as_array, is_image
from mspc.data.dataset.pillow import image_of
from mspc.data.dataset.row_values import flag
from mspc.data.dataset.vision.shapes import require_image, size_of


class FiveCrop:
    """(top left, top right, bottom left, bottom right, middle), parts of `size`, a number or (height, width)."""

    def __init__(self, size: Any) -> None:
        self.size = size_of(type(self).__name__, size)

    def __call__(self, *images: Any) -> tuple[Any, ...]:
        name = type(self).__name__
        if len(images) != 1:
            raise ApiTypeError(f"{name}: takes one column, not {len(images)}")
        array = as_array(name, images[0])
        require_image(name, array.shape)
        if self.size[0] > array.shape[0] or self.size[1] > array.shape[1]:
            raise ApiValueError(f"{name}: size {self.size} does not fit into an image of {array.shape[:2]}")
        found = [np.ascontiguousarray(part) for part in self.parts(array)]
        return tuple(image_of(part) for part in found) if is_image(images[0]) else tuple(found)

    def parts(self, image: np.ndarray) -> list[np.ndarray]:
        (height, width), (rows, columns) = self.size, image.shape[:2]
        down, along = rows - height, columns - width
        places = [(0, 0), (0, along), (down, 0), (down, along), (round(down / 2), round(along / 2))]
        return [image[y : y + height, x : x + width] for y, x in places]


class TenCrop(FiveCrop):
    """The five parts of `FiveCrop`, and those of the image mirrored left to right, or upside down."""

    def __init__(self, size: Any, use_vertical_flip: bool = False) -> None:
        super().__init__(size)
        self.vertical = flag("TenCrop", "use_vertical_flip", use_vertical_flip)

    def parts(self, image: np.ndarray) -> list[np.ndarray]:
        return [*super().parts(image), *super().parts(image[::-1] if self.vertical else image[:, ::-1])]
