"""These operations rotate, mirror, shift and blur images, and take parts out of them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation, Operation
from mspc.data.dataset.pillow import image_of, library
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.resizing import resized
from mspc.data.dataset.row_values import flag, integer
from mspc.data.dataset.vision.enums import Inter
from mspc.data.dataset.vision.shapes import (
    LARGEST,
    fill_of,
    height_axis,
    inter_of,
    number,
    probability,
    require_image,
    size_of,
    span,
)


class Rotate(EachOperation):
    """The image turned counter-clockwise by degrees; what was outside of it becomes fill_value.

    resample: how values between pixels are found. expand: the image grows so that nothing is lost. center: (x, y)
    around which it turns, the middle unless given.
    """

    keeps_images: ClassVar[bool] = True

    def __init__(
        self, degrees: Any, resample: Inter = Inter.NEAREST, expand: bool = False, center: Any = None,
        fill_value: Any = 0,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.degrees = self._degrees(degrees)
        self.resample = inter_of(name, resample)
        self.expand = flag(name, "expand", expand)
        if center is not None and (not isinstance(center, tuple | list) or len(center) != 2):
            raise ApiTypeError(f"{name}: center must be (x, y), not {center!r}")
        self.center = None if center is None else tuple(number(name, "center", place) for place in center)
        self.fill = fill_of(name, fill_value)

    def _degrees(self, degrees: Any) -> tuple[float, float]:
        angle = number("Rotate", "degrees", degrees)
        return angle, angle

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image(type(self).__name__, value.shape)
        least, most = self.degrees
        angle = least if least == most else least + float(draws.uniform()[0]) * (most - least)
        image = image_of(value)
        fill = self.fill[0] if len(image.getbands()) == 1 else (self.fill * 3)[: len(image.getbands())]
        chosen = getattr(library().Resampling, self.resample.filter)
        made = np.asarray(image.rotate(angle, chosen, self.expand, self.center, fillcolor=fill))
        return made.reshape(*made.shape[:2], *value.shape[2:])


class RandomRotation(Rotate):
    """`Rotate` by degrees sampled uniformly from (least, most), or from - degrees to degrees."""

    def __init__(
        self, degrees: Any, resample: Inter = Inter.NEAREST, expand: bool = False, center: Any = None,
        fill_value: Any = 0,
    ) -> None:  # fmt: skip
        super().__init__(degrees, resample, expand, center, fill_value)

    def _degrees(self, degrees: Any) -> tuple[float, float]:
        if not isinstance(degrees, tuple | list):
            around = number("RandomRotation", "degrees", degrees)
            if around < 0:
                raise ApiValueError(f"RandomRotation: degrees {degrees} must not be negative")
            return -around, around
        if len(degrees) != 2 or number("RandomRotation", "degrees", degrees[0]) > number("", "degrees", degrees[1]):
            raise ApiValueError(f"RandomRotation: degrees {degrees} must be (least, most)")
        return float(degrees[0]), float(degrees[1])


class GaussianBlur(EachOperation):
    """Means weighted by the normal distribution over windows of kernel_size, odd numbers (width, height) or one; sigma:
    its deviation, (width, height) or one, 0.3 ((size - 1) / 2 - 1) + 0.8 unless given. Edges are mirrored."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, kernel_size: Any, sigma: Any = None) -> None:
        sizes = kernel_size if isinstance(kernel_size, tuple | list) else (kernel_size, kernel_size)
        self.sizes = [integer("GaussianBlur", "kernel_size", size) for size in sizes]
        if len(self.sizes) != 2 or any(size % 2 == 0 for size in self.sizes):
            raise ApiValueError(f"GaussianBlur: kernel_size {kernel_size!r} must be an odd number, or two")
        given = sigma if isinstance(sigma, tuple | list) else (sigma, sigma)
        own = [0.3 * ((size - 1) / 2 - 1) + 0.8 for size in self.sizes]
        found = [number("GaussianBlur", "sigma", s) if s is not None else o for s, o in zip(given, own, strict=True)]
        self.sigmas = [s if s > 0 else o for s, o in zip(found, own, strict=True)]

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("GaussianBlur", value.shape)
        found = value.astype(np.float64)
        for axis, size, sigma in zip((1, 0), self.sizes, self.sigmas, strict=True):
            places = np.arange(size) - size // 2
            weights = np.exp(-(places**2) / (2 * sigma**2))
            wide = np.pad(found, [(size // 2,) * 2 if d == axis else (0, 0) for d in range(found.ndim)], "reflect")
            shifted = [np.take(wide, range(i, i + found.shape[axis]), axis) for i in range(size)]
            found = sum(w * part for w, part in zip(weights / weights.sum(), shifted, strict=True))
        if value.dtype == np.uint8:
            found = np.clip(np.rint(found), 0, 255)
        return found.astype(value.dtype)


class Erase(EachOperation):
    """A rectangle of the image set to a value, one for all channels or one each. inplace: the image given stays as it
    is whatever it says."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, top: int, left: int, height: int, width: int, value: Any = 0, inplace: bool = False) -> None:
        flag("Erase", "inplace", inplace)
        self.top, self.left = integer("Erase", "top", top, 0), integer("Erase", "left", left, 0)
        self.height, self.width = integer("Erase", "height", height), integer("Erase", "width", width)
        self.value = fill_of("Erase", value)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("Erase", value.shape)
        found = value.copy()
        rows, columns = slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)
        found[rows, columns] = self.value if len(self.value) > 1 else self.value[0]
        return found


class CutOut(EachOperation):
    """num_patches squares of a side of `length` set to 0, around places sampled uniformly. is_hwc: False for images
    [channels, height, width]."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, length: int, num_patches: int = 1, is_hwc: bool = True) -> None:
        self.length = integer("CutOut", "length", length, most=LARGEST)
        self.count = integer("CutOut", "num_patches", num_patches, most=LARGEST)
        self.first = 0 if flag("CutOut", "is_hwc", is_hwc) else 1

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("CutOut", value.shape)
        found = value.copy()
        height, width = value.shape[self.first : self.first + 2]
        for patch in range(self.count):
            y, x = (int(float(draws.uniform(2 * patch + i)[0]) * n) for i, n in enumerate((height, width)))
            rows = slice(max(0, y - self.length // 2), y - self.length // 2 + self.length)
            columns = slice(max(0, x - self.length // 2), x - self.length // 2 + self.length)
            found[(slice(None),) * self.first + (rows, columns)] = 0
        return found


class RandomErasing(EachOperation):
    """With probability `prob` a rectangle set to a value: its area a share sampled from `scale` of that of the image
    [channels, height, width], its height over its width sampled from `ratio`, at a place sampled uniformly.

    value: a number, one for each channel, or "random". inplace: the image given stays as it is whatever it says.
    max_attempts: how often a rectangle is sampled that does not fit before the image stays as it is.
    """

    def __init__(
        self, prob: float = 0.5, scale: Any = (0.02, 0.33), ratio: Any = (0.3, 3.3), value: Any = 0,
        inplace: bool = False, max_attempts: int = 10,
    ) -> None:  # fmt: skip
        self.prob = probability("RandomErasing", prob)
        self.scale, self.ratio = span("RandomErasing", "scale", scale), span("RandomErasing", "ratio", ratio)
        if isinstance(value, str) and value != "random":
            raise ApiValueError(f"RandomErasing: value {value!r} must be a number, one for each channel, or 'random'")
        if not isinstance(value, str):
            for each in value if isinstance(value, tuple | list) else [value]:
                number("RandomErasing", "value", each)
        self.value = value
        flag("RandomErasing", "inplace", inplace)
        self.attempts = integer("RandomErasing", "max_attempts", max_attempts)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.ndim != 3:
            raise ApiValueError(f"RandomErasing: an image has shape (channels, height, width), not {value.shape}")
        channels, height, width = value.shape
        if float(draws.uniform()[0]) >= self.prob:
            return value
        for attempt in range(self.attempts):
            even = [float(draws.uniform(1 + 4 * attempt + i)[0]) for i in range(4)]
            area = height * width * (self.scale[0] + even[0] * (self.scale[1] - self.scale[0]))
            low, high = (math.log(max(side, 1e-9)) for side in self.ratio)
            ratio = math.exp(low + even[1] * (high - low))
            rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < rows < height and 0 < columns < width:
                top, left = int(even[2] * (height - rows + 1)), int(even[3] * (width - columns + 1))
                found = value.copy()
                found[:, top : top + rows, left : left + columns] = self._filled(channels, rows, columns, even)
                return found
        return value

    def _filled(self, channels: int, rows: int, columns: int, even: list[float]) -> Any:
        if self.value == "random":
            seeded = np.random.default_rng([int(n * 2**32) for n in even])
            return seeded.standard_normal((channels, rows, columns))
        if isinstance(self.value, tuple | list):
            if len(self.value) != channels:
                raise ApiValueError(f"RandomErasing: {len(self.value)} values do not fit {channels} channels")
            return np.array(self.value).reshape(-1, 1, 1)
        return self.value


class ResizedCrop(EachOperation):
    """A part of the image, height x width from (top, left), in another size, with the numbers of OpenCV."""

    keeps_images: ClassVar[bool] = True

    def __init__(
        self, top: int, left: int, height: int, width: int, size: Any, interpolation: Inter = Inter.BILINEAR
    ) -> None:
        self.top, self.left = integer("ResizedCrop", "top", top, 0), integer("ResizedCrop", "left", left, 0)
        self.height, self.width = integer("ResizedCrop", "height", height), integer("ResizedCrop", "width", width)
        self.size = size_of("ResizedCrop", size)
        self.interpolation = inter_of("ResizedCrop", interpolation)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("ResizedCrop", value.shape)
        if self.top + self.height > value.shape[0] or self.left + self.width > value.shape[1]:
            raise ApiValueError(f"ResizedCrop: the part does not lie in an image of shape {value.shape}")
        part = value[self.top : self.top + self.height, self.left : self.left + self.width]
        return resized(part[None], self.size, self.interpolation)[0]


class PadToSize(EachOperation):
    """The image with borders that make it of a size, (height, width) or one number for both.

    offset: what is above and left of it, as much as below and right unless given. fill_value: what borders hold.
    padding_mode: Border.CONSTANT alone.
    """

    keeps_images: ClassVar[bool] = True

    def __init__(self, size: Any, offset: Any = None, fill_value: Any = 0, padding_mode: Any = "constant") -> None:
        self.size = size_of("PadToSize", size)
        given = (offset, offset) if isinstance(offset, int) else offset
        self.offset = None if not given else tuple(integer("PadToSize", "offset", n, 0) for n in given)
        self.fill = fill_of("PadToSize", fill_value)
        if padding_mode != "constant":
            raise ApiTypeError(f"PadToSize: padding_mode must be Border.CONSTANT, not {padding_mode!r}")

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("PadToSize", value.shape)
        height, width = value.shape[:2]
        lacks = self.size[0] - height, self.size[1] - width
        top, left = self.offset or (lacks[0] // 2, lacks[1] // 2)
        if min(lacks) < 0 or top > lacks[0] or left > lacks[1]:
            raise ApiValueError(f"PadToSize: an image of shape {value.shape} does not fit the size {self.size}")
        found = np.empty((*self.size, *value.shape[2:]), value.dtype)
        found[...] = self.fill if len(self.fill) > 1 else self.fill[0]
        found[top : top + height, left : left + width] = value
        return found


class HorizontalFlip(Operation):
    """The image mirrored, left for right."""

    keeps_images: ClassVar[bool] = True
    axis: ClassVar[int] = 1

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
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

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
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
