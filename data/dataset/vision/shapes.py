"""This module finds which dimensions of images are height and width, and checks arguments about them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.row_values import integer
from mspc.data.dataset.vision.enums import Border, Inter


def height_axis(name: str, images: np.ndarray) -> int:
    """The axis of height in [rows, height, width] or [rows, ..., height, width, channels]; width is the next one.
    Raises ValueError for rows of other shapes."""
    if images.ndim < 3:
        raise ApiValueError(f"{name}: an image has 2 or 3 dimensions, not shape {images.shape[1:]}")
    if 0 in images.shape[1:]:
        raise ApiValueError(f"{name}: an image of shape {images.shape[1:]} is empty")
    return 1 if images.ndim == 3 else images.ndim - 3


def require_image(name: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError where an image has another shape than [height, width] or [height, width, channels]."""
    if len(shape) not in (2, 3):
        raise ApiValueError(f"{name}: an image has 2 or 3 dimensions, not shape {shape}")
    if 0 in shape:
        raise ApiValueError(f"{name}: an image of shape {shape} is empty")


def channels_of(name: str, images: np.ndarray) -> int:
    """Number of channels, 1 for images without them."""
    return 1 if height_axis(name, images) == images.ndim - 2 else images.shape[-1]


LARGEST = 2**24
"""The largest side of an image, and the largest number of its parts: as MindSpore has it."""


def size_of(name: str, size: Any) -> tuple[int, int]:
    """(height, width) of one number or two. Raises TypeError or ValueError for others."""
    if isinstance(size, (tuple, list)):
        if len(size) != 2:
            raise ApiValueError(f"{name}: size must be a number or (height, width), not {size!r}")
        height, width = size
        return integer(name, "size", height, most=LARGEST), integer(name, "size", width, most=LARGEST)
    side = integer(name, "size", size, most=LARGEST)
    return side, side


def padding_of(name: str, padding: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of one number, of (left and right, top and bottom), or of four."""
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
    """One value for all channels, or three. Raises TypeError or ValueError for others."""
    given = fill if isinstance(fill, tuple) else (fill,)
    if len(given) not in (1, 3):
        raise ApiTypeError(f"{name}: fill_value must be a number or three, not {fill!r}")
    for value in given:
        if integer(name, "fill_value", value, 0) > 255:
            raise ApiValueError(f"{name}: fill_value {value} must be at most 255")
    return tuple(given)


def probability(name: str, prob: Any) -> float:
    """Raises TypeError for no number, ValueError outside of 0 to 1."""
    if isinstance(prob, bool) or not isinstance(prob, (int, float)):
        raise ApiTypeError(f"{name}: prob must be a number, not {prob!r}")
    if not 0 <= prob <= 1:
        raise ApiValueError(f"{name}: prob {prob} must be from 0 to 1")
    return float(prob)


def number(name: str, what: str, value: Any) -> float:
    """Raises TypeError for no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise ApiTypeError(f"{name}: {what} must be a number, not {value!r}")
    return float(value)


def span(name: str, what: str, value: Any) -> tuple[float, float]:
    """(least, most). Raises TypeError for no pair of numbers, ValueError for one below 0 or that falls."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ApiTypeError(f"{name}: {what} must be (least, most), not {value!r}")
    least, most = (number(name, what, entry) for entry in value)
    if not 0 <= least <= most or not most:
        raise ApiValueError(f"{name}: {what} {tuple(value)} must rise, from 0 on")
    return least, most


def padded(
    name: str, images: np.ndarray, padding: tuple[int, int, int, int], fill: tuple[int, ...], border: Border
) -> np.ndarray:
    """Images with borders (left, top, right, bottom)."""
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
