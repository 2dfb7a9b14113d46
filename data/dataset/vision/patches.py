"""This operation divides images into patches."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import as_array
from mspc.data.dataset.row_values import integer
from mspc.data.dataset.vision.enums import Border, SliceMode
from mspc.data.dataset.vision.shapes import LARGEST, fill_of, padded, require_image


class SlicePatches:
    """The image divided into `num_height` times `num_width` patches of one size, row by row: a tuple, or the image
    itself where there is one. A map names a column for each in `output_columns`.

    Args: slice_mode: whether an image that cannot be divided evenly gets more pixels at its right and bottom, of
        `fill_value` in every channel, or loses what is too much there.
    Raises: TypeError, ValueError: an argument is of the wrong kind, a value is no image, or nothing is left of one.
    """

    def __init__(
        self, num_height: int = 1, num_width: int = 1, slice_mode: SliceMode = SliceMode.PAD, fill_value: int = 0
    ) -> None:
        self.counts = (
            integer("SlicePatches", "num_height", num_height, most=LARGEST),
            integer("SlicePatches", "num_width", num_width, most=LARGEST),
        )
        if not isinstance(slice_mode, SliceMode):
            raise ApiTypeError(f"SlicePatches: slice_mode must be a SliceMode, not {slice_mode!r}")
        self.drops = slice_mode == SliceMode.DROP
        (self.fill,) = fill_of("SlicePatches", integer("SlicePatches", "fill_value", fill_value, 0))

    def __call__(self, image: Any) -> Any:
        """The patches of one image, [height, width] or [height, width, channels]."""
        array = as_array("SlicePatches", image)
        require_image("SlicePatches", array.shape)
        if self.counts == (1, 1):
            return array
        sizes = [self._size(side, count) for side, count in zip(array.shape[:2], self.counts, strict=True)]
        lacks = [size * count - side for side, size, count in zip(array.shape[:2], sizes, self.counts, strict=True)]
        if max(lacks) > 0:
            below, right = lacks
            array = padded("SlicePatches", array[None], (0, 0, right, below), (self.fill,), Border.CONSTANT)[0]
        height, width = sizes
        return tuple(
            np.ascontiguousarray(array[i * height : (i + 1) * height, j * width : (j + 1) * width])
            for i in range(self.counts[0])
            for j in range(self.counts[1])
        )

    def _size(self, side: int, count: int) -> int:
        """Height or width of a patch."""
        size = side // count if self.drops else -(-side // count)
        if not size:
            raise ApiValueError(f"SlicePatches: nothing is left of {side} pixels in {count} patches")
        return size
