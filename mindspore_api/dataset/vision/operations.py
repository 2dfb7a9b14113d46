"""Operations that crop, mirror, resize and colour images, and add borders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.ir.types import dtype_of
from mspc.mindspore_api.dataset.nodes.block import Column
from mspc.mindspore_api.dataset.operation import Arithmetic, EachOperation, Operation, Step, require_numbers
from mspc.mindspore_api.dataset.pillow import decoded, library
from mspc.mindspore_api.dataset.pipeline_random import PipelineDraws
from mspc.mindspore_api.dataset.resizing import resized
from mspc.mindspore_api.dataset.row_values import flag, integer
from mspc.mindspore_api.dataset.vision.enums import Border, Inter
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError


def cropped(name: str, images: np.ndarray, tops: np.ndarray, lefts: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return one part of every image, all of one size, each at its own offset."""
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
    """Crops the centre of the image; a smaller image is padded with 0 first. size: a number or (height, width)."""

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


class Pad(Operation):
    """Adds borders to the image.

    Args: padding: on all sides, (left and right, top and bottom), or (left, top, right, bottom). fill_value: one number
    or one for each of 3 channels, for Border.CONSTANT.
    """

    def __init__(self, padding: Any, fill_value: Any = 0, padding_mode: Border = Border.CONSTANT) -> None:
        self.padding = padding_of("Pad", padding)
        self.fill = fill_of("Pad", fill_value)
        self.border = border_of("Pad", padding_mode)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return padded("Pad", values, self.padding, self.fill, self.border)


class RandomCrop(Operation):
    """Crops a part of `size` at a random place of the padded image.

    Args: size: a number or (height, width). padding, fill_value, padding_mode: as in Pad. pad_if_needed: pad an image
    further if it is smaller than `size`.
    """

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
    """Crops a random part of the image and resizes it.

    Args: size: of the result, a number or (height, width). scale: least and largest share of the image's area. ratio:
    least and largest ratio of width to height. max_attempts: number of times to sample a part; if all exceed the image,
    the centre is used.
    """

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

    def of_image(self, image: Any, draws: PipelineDraws) -> Any:
        part = library().fromarray(self._cropped(np.asarray(image), draws))
        return np.asarray(part.resize(self.size[::-1], self.interpolation.value))  # `Inter` has Pillow's numbers

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return resized(self._cropped(value, draws)[None], self.size, self.interpolation)[0]

    def _cropped(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("RandomResizedCrop", value.shape)
        top, left, height, width = self._part(value.shape[0], value.shape[1], draws)
        return value[top : top + height, left : left + width]

    def _part(self, height: int, width: int, draws: PipelineDraws) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of a random part."""
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


class RandomHorizontalFlip(Operation):
    """Mirrors the image left to right with probability `prob`."""

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
    """Mirrors the image top to bottom with probability `prob`."""

    axis: ClassVar[int] = 0


def height_axis(name: str, images: np.ndarray) -> int:
    """Return the axis of height in [rows, height, width] or [rows, ..., height, width, channels]; width is the next
    axis. Raise ValueError for rows of other shapes."""
    require_image(name, images.shape[1:], most=images.ndim)
    return 1 if images.ndim == 3 else images.ndim - 3


def require_image(name: str, shape: tuple[int, ...], most: int = 3) -> None:
    """Raise ValueError if an image has fewer than two dimensions or more than `most`, or is empty."""
    if not 2 <= len(shape) <= most:
        raise ApiValueError(f"{name}: an image has 2 or 3 dimensions, not shape {shape}")
    if 0 in shape:
        raise ApiValueError(f"{name}: an image of shape {shape} is empty")


def channels_of(name: str, images: np.ndarray) -> int:
    """Return the number of channels, 1 for images without a channel axis."""
    return 1 if height_axis(name, images) == images.ndim - 2 else images.shape[-1]


LARGEST = 2**24
"""Maximum side length of an image, and maximum number of its parts, as in MindSpore."""


def size_of(name: str, size: Any) -> tuple[int, int]:
    """Return (height, width) from one number or two. Raise TypeError or ValueError for other values."""
    if isinstance(size, (tuple, list)):
        if len(size) != 2:
            raise ApiValueError(f"{name}: size must be a number or (height, width), not {size!r}")
        height, width = size
        return integer(name, "size", height, most=LARGEST), integer(name, "size", width, most=LARGEST)
    side = integer(name, "size", size, most=LARGEST)
    return side, side


def padding_of(name: str, padding: Any) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) from one number, from (left and right, top and bottom), or from four."""
    given = padding if isinstance(padding, (tuple, list)) else (padding,)
    sizes = [integer(name, "padding", size, 0) for size in given]
    if len(sizes) not in (1, 2, 4):
        raise ApiValueError(f"{name}: padding {padding!r} must be 1, 2 or 4 numbers")
    left, top, right, bottom = sizes * (4 // len(sizes)) if len(sizes) != 2 else [*sizes, *sizes]
    return left, top, right, bottom


def border_of(name: str, border: Any) -> Border:
    if not isinstance(border, Border):
        raise ApiTypeError(f"{name}: padding_mode must be a Border, not {border!r}")
    return border


def inter_of(name: str, interpolation: Any) -> Inter:
    if not isinstance(interpolation, Inter):
        raise ApiTypeError(f"{name}: interpolation must be an Inter, not {interpolation!r}")
    return interpolation


def fill_of(name: str, fill: Any) -> tuple[int, ...]:
    """Return one value for all channels, or three. Raise TypeError or ValueError for other values."""
    given = fill if isinstance(fill, tuple) else (fill,)
    if len(given) not in (1, 3):
        raise ApiTypeError(f"{name}: fill_value must be a number or three, not {fill!r}")
    for value in given:
        if integer(name, "fill_value", value, 0) > 255:
            raise ApiValueError(f"{name}: fill_value {value} must be at most 255")
    return tuple(given)


def probability(name: str, prob: Any) -> float:
    """Return `prob` as a float. Raise TypeError for no number, ValueError outside of 0 to 1."""
    if isinstance(prob, bool) or not isinstance(prob, (int, float)):
        raise ApiTypeError(f"{name}: prob must be a number, not {prob!r}")
    if not 0 <= prob <= 1:
        raise ApiValueError(f"{name}: prob {prob} must be from 0 to 1")
    return float(prob)


def number(name: str, what: str, value: Any) -> float:
    """Return a number as a float. Raise TypeError for no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise ApiTypeError(f"{name}: {what} must be a number, not {value!r}")
    return float(value)


def span(name: str, what: str, value: Any) -> tuple[float, float]:
    """Return (least, most). Raise TypeError for no pair of numbers, ValueError for a negative or falling pair."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ApiTypeError(f"{name}: {what} must be (least, most), not {value!r}")
    least, most = (number(name, what, entry) for entry in value)
    if not 0 <= least <= most or not most:
        raise ApiValueError(f"{name}: {what} {tuple(value)} must rise, from 0 on")
    return least, most


def padded(
    name: str, images: np.ndarray, padding: tuple[int, int, int, int], fill: tuple[int, ...], border: Border
) -> np.ndarray:
    """Return images with borders (left, top, right, bottom)."""
    left, top, right, bottom = padding
    if not any(padding):
        return images
    axis = height_axis(name, images)
    height, width = images.shape[axis : axis + 2]
    if border is not Border.CONSTANT:
        around = [(0, 0)] * images.ndim
        around[axis : axis + 2] = [(top, bottom), (left, right)]
        return np.pad(images, around, border.value)
    shape = list(images.shape)
    shape[axis : axis + 2] = [height + top + bottom, width + left + right]
    same = len(set(fill)) == 1
    if not same and channels_of(name, images) != 3:
        raise ApiValueError(f"{name}: three fill values need 3 channels, not {channels_of(name, images)}")
    result = np.full(shape, fill[0] if same else fill, images.dtype)
    inner = (slice(None),) * axis + (slice(top, top + height), slice(left, left + width))
    result[inner] = images
    return result


class Decode(EachOperation):
    """Decodes the bytes of a file (JPEG, PNG, BMP, ...) to an RGB image [height, width, 3]."""

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.ndim != 1 or value.dtype.kind not in "iu" or value.dtype.itemsize != 1:
            raise ApiTypeError(
                f"Decode: takes the bytes of a file, one dimension of UInt8, not shape {value.shape} of {value.dtype}"
            )
        return np.asarray(decoded("Decode", value))


class RandomCropDecodeResize(RandomResizedCrop):
    """Decodes the bytes of a file to an RGB image, crops a random part and resizes it. Arguments as in
    RandomResizedCrop."""

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return super().single(Decode().single(value, draws), draws)


class Resize(Operation):
    """Resizes the image to (height, width), or its shorter side to a number, as OpenCV does; Pillow resizes its own."""

    def __init__(self, size: Any, interpolation: Inter = Inter.LINEAR) -> None:
        self.size = size_of("Resize", size)
        self.shorter = not isinstance(size, (tuple, list))
        self.interpolation = inter_of("Resize", interpolation)

    def of_image(self, image: Any, draws: PipelineDraws) -> Any:
        """Return the image as Pillow resizes it. draws: of no use here."""
        return np.asarray(image.resize(self._target(image.height, image.width)[::-1], self.interpolation.value))

    def many(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        require_image("Resize", values.shape[1:])
        return resized(values, self._target(*values.shape[1:3]), self.interpolation)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if not self.shorter:
            return self.size
        side = self.size[0]
        return (side, side * width // height) if height <= width else (side * height // width, side)


class Rescale(Arithmetic):
    """image * rescale + shift, as Float32."""

    in_floats: ClassVar[bool] = True
    output_type = np.dtype(np.float32)

    def __init__(self, rescale: float, shift: float) -> None:
        self.rescale = number("Rescale", "rescale", rescale)
        self.shift = number("Rescale", "shift", shift)

    def steps(self, values: np.ndarray) -> Sequence[Step]:
        require_numbers("Rescale", values)
        return [(np.multiply, np.float32(self.rescale)), (np.add, np.float32(self.shift))]


class Normalize(Arithmetic):
    """(image - mean) / std, one number per channel, as Float32.

    Args: mean: from 0 to 255. std: above 0. is_hwc: channels are last, else first.
    """

    in_floats: ClassVar[bool] = True
    output_type = np.dtype(np.float32)

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_hwc: bool = True) -> None:
        for what, values in (("mean", mean), ("std", std)):
            if not isinstance(values, (tuple, list, np.ndarray)) or not len(values):
                raise ApiTypeError(f"Normalize: {what} must be a list with a number for every channel, not {values!r}")
        if len(mean) != len(std):
            raise ApiValueError(f"Normalize: mean has {len(mean)} channels, std {len(std)}")
        if not all(0 <= number("Normalize", "mean", value) <= 255 for value in mean):
            raise ApiValueError(f"Normalize: mean {tuple(mean)} must be from 0 to 255")
        if not all(number("Normalize", "std", value) > 0 for value in std):
            raise ApiValueError(f"Normalize: std {tuple(std)} must be positive")
        self.mean = np.asarray(mean, np.float32)
        self.std = np.asarray(std, np.float32)
        self.is_hwc = flag("Normalize", "is_hwc", is_hwc)

    def steps(self, values: np.ndarray) -> Sequence[Step]:
        height_axis("Normalize", values)
        shape = values.shape
        channels = 1 if values.ndim == 3 else shape[-1] if self.is_hwc else shape[-3]
        if self.mean.size not in (1, channels):
            raise ApiValueError(f"Normalize: the image has {channels} channels, mean {self.mean.size}")
        if self.mean.size == 1:
            return [(np.subtract, self.mean[0]), (np.divide, self.std[0])]
        around = [1] * values.ndim
        around[-1 if self.is_hwc else -3] = channels
        return [(np.subtract, self.mean.reshape(around)), (np.divide, self.std.reshape(around))]


class HWC2CHW(Arithmetic):
    """[height, width, channels] -> [channels, height, width]."""

    def ordered(self, values: np.ndarray) -> np.ndarray:
        if values.ndim == 3:
            return values[:, None]
        height_axis("HWC2CHW", values)
        return np.moveaxis(values, -1, -3)


class ToTensor(HWC2CHW):
    """[height, width, channels] of bytes -> [channels, height, width] in [0, 1].

    Args: output_type: element type of the result, of mspc or NumPy.
    """

    in_floats: ClassVar[bool] = True

    def __init__(self, output_type: Any = np.float32) -> None:
        self.output_type = np.dtype(dtype_of(output_type).numpy)

    def steps(self, values: np.ndarray) -> Sequence[Step]:
        require_image("ToTensor", values.shape[1:])
        return [(np.divide, np.float32(255))]
