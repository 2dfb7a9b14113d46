"""These operations take parts of images, and put borders around them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation, Operation
from mspc.data.dataset.pillow import resampled
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.resizing import resized
from mspc.data.dataset.row_values import flag, integer
from mspc.data.dataset.vision.enums import Border, Inter
from mspc.data.dataset.vision.shapes import (
    border_of,
    fill_of,
    height_axis,
    inter_of,
    padded,
    padding_of,
    require_image,
    size_of,
    span,
)


def cropped(
    name: str, images: np.ndarray, tops: np.ndarray, lefts: np.ndarray, size: tuple[int, int]
) -> np.ndarray:
    """Of every image the part of one size that begins at its own place."""
    axis = height_axis(name, images)
    height, width = size
    shape = list(images.shape)
    shape[axis : axis + 2] = [height, width]
    result = np.empty_like(images, shape=shape)
    before = (slice(None),) * (axis - 1)
    for i, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True)):
        result[i] = images[(i, *before, slice(top, top + height), slice(left, left + width))]
    return result


class CenterCrop(Operation):
    """The middle of the image; a smaller one gets borders of 0 first. size: a number or (height, width)."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, size: Any) -> None:
        self.size = size_of("CenterCrop", size)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        axis = height_axis("CenterCrop", values)
        lacks = [max(0, wanted - there) for wanted, there in zip(self.size, values.shape[axis:], strict=False)]
        top, left = (lack // 2 + lack % 2 for lack in lacks)
        around = (left, top, lacks[1] - left, lacks[0] - top)
        images = padded("CenterCrop", values, around, (0,), Border.CONSTANT)
        y, x = ((there - wanted) // 2 for wanted, there in zip(self.size, images.shape[axis:], strict=False))
        before = (slice(None),) * axis
        return images[(*before, slice(y, y + self.size[0]), slice(x, x + self.size[1]))]


class Crop(Operation):
    """The part of `size` whose first pixel stands at `coordinates`, (top, left)."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, coordinates: Any, size: Any) -> None:
        if not isinstance(coordinates, (tuple, list)) or len(coordinates) != 2:
            raise ApiTypeError(f"Crop: coordinates must be (top, left), not {coordinates!r}")
        self.top, self.left = (integer("Crop", "coordinates", place, 0) for place in coordinates)
        self.size = size_of("Crop", size)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        axis = height_axis("Crop", values)
        there = values.shape[axis : axis + 2]
        last = (self.top + self.size[0], self.left + self.size[1])
        if last[0] > there[0] or last[1] > there[1]:
            raise ApiValueError(f"Crop: {self.size} from {(self.top, self.left)} on exceeds the image {there}")
        return values[(*(slice(None),) * axis, slice(self.top, last[0]), slice(self.left, last[1]))]


class Pad(Operation):
    """Borders around the image.

    Args: padding: on all sides, (left and right, top and bottom), or (left, top, right, bottom). fill_value: one number
        or one for each of 3 channels, of Border.CONSTANT.
    """

    keeps_images: ClassVar[bool] = True

    def __init__(self, padding: Any, fill_value: Any = 0, padding_mode: Border = Border.CONSTANT) -> None:
        self.padding = padding_of("Pad", padding)
        self.fill = fill_of("Pad", fill_value)
        self.border = border_of("Pad", padding_mode)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return padded("Pad", values, self.padding, self.fill, self.border)


class RandomCrop(Operation):
    """A part of `size` of the image with its borders, at a random place.

    Args: size: a number or (height, width). padding, fill_value, padding_mode: of the borders, as of Pad.
        pad_if_needed: an image that is smaller gets more of them.
    """

    keeps_images: ClassVar[bool] = True

    def __init__(
        self, size: Any, padding: Any = None, pad_if_needed: bool = False, fill_value: Any = 0,
        padding_mode: Border = Border.CONSTANT,
    ) -> None:  # fmt: skip
        self.size = size_of("RandomCrop", size)
        self.padding = padding_of("RandomCrop", 0 if padding is None else padding)
        self.pad_if_needed = flag("RandomCrop", "pad_if_needed", pad_if_needed)
        self.fill = fill_of("RandomCrop", fill_value)
        self.border = border_of("RandomCrop", padding_mode)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        axis = height_axis("RandomCrop", values)
        images = padded("RandomCrop", values, self.padding, self.fill, self.border)
        if self.pad_if_needed:
            more = [max(0, size - there) for size, there in zip(self.size, images.shape[axis:], strict=False)]
            images = padded("RandomCrop", images, (more[1], more[0], more[1], more[0]), self.fill, self.border)
        height, width = images.shape[axis : axis + 2]
        if self.size[0] > height or self.size[1] > width:
            raise ApiValueError(f"RandomCrop: size {self.size} exceeds the padded image {(height, width)}")
        tops, lefts = draws.integer(0, height - self.size[0]), draws.integer(1, width - self.size[1])
        return cropped("RandomCrop", images, tops, lefts, self.size)


class RandomResizedCrop(EachOperation):
    """A random part of the image, in another size.

    Args: size: of the result, a number or (height, width). scale: least and largest share of the image's area.
        ratio: least and largest width by height. max_attempts: how often a part is sampled that might exceed the image
        before its middle is taken.
    """

    keeps_images: ClassVar[bool] = True

    def __init__(
        self, size: Any, scale: Any = (0.08, 1.0), ratio: Any = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Inter = Inter.BILINEAR, max_attempts: int = 10,
    ) -> None:  # fmt: skip
        self.size = size_of("RandomResizedCrop", size)
        self.scale = span("RandomResizedCrop", "scale", scale)
        self.ratio = span("RandomResizedCrop", "ratio", ratio)
        if not self.ratio[0]:
            raise ApiValueError("RandomResizedCrop: ratio must be above 0")
        self.interpolation = inter_of("RandomResizedCrop", interpolation)
        self.max_attempts = integer("RandomResizedCrop", "max_attempts", max_attempts)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return resized(self._cropped(value, draws)[None], self.size, self.interpolation)[0]

    def single_image(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return resampled(self._cropped(value, draws), self.size, self.interpolation.filter)

    def _cropped(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("RandomResizedCrop", value.shape)
        top, left, height, width = self._part(value.shape[0], value.shape[1], draws)
        return value[top : top + height, left : left + width]

    def _part(self, height: int, width: int, draws: PipelineDraws) -> tuple[int, int, int, int]:
        """(top, left, height, width)"""
        logs = tuple(map(math.log, self.ratio))
        for attempt in range(self.max_attempts):
            area, shape = (float(draws.uniform(4 * attempt + i)[0]) for i in range(2))
            area = height * width * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            ratio = math.exp(logs[0] + shape * (logs[1] - logs[0]))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                top = int(draws.integer(4 * attempt + 2, height - high)[0])
                left = int(draws.integer(4 * attempt + 3, width - wide)[0])
                return top, left, high, wide
        high, wide = height, width
        if width / height < self.ratio[0]:
            high = round(width / self.ratio[0])
        elif width / height > self.ratio[1]:
            wide = round(height * self.ratio[1])
        return (height - high) // 2, (width - wide) // 2, high, wide
