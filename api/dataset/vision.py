"""Operations on images: arrays [height, width, channels] unless said otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError


class Inter:
    """How Resize interpolates."""

    NEAREST = "nearest"
    LINEAR = "linear"
    BILINEAR = "linear"


class Rescale:
    """image * rescale + shift, as Float32."""

    def __init__(self, rescale: float, shift: float) -> None:
        self.rescale = rescale
        self.shift = shift

    def __call__(self, image: Any) -> np.ndarray:
        return np.asarray(image).astype(np.float32) * np.float32(self.rescale) + np.float32(self.shift)


class Normalize:
    """(image - mean) / std, one number per channel.

    Args: is_hwc: channels are last, else first.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_hwc: bool = True) -> None:
        if len(mean) != len(std):
            raise ApiValueError(f"Normalize: mean has {len(mean)} channels, std {len(std)}")
        if not all(value > 0 for value in std):
            raise ApiValueError(f"Normalize: std {tuple(std)} must be positive")
        self.mean = np.asarray(mean, np.float32)
        self.std = np.asarray(std, np.float32)
        self.is_hwc = is_hwc

    def __call__(self, image: Any) -> np.ndarray:
        array = np.asarray(image).astype(np.float32)
        channels = array.shape[-1 if self.is_hwc else 0] if array.ndim > 2 else 1
        if self.mean.size not in (1, channels):
            raise ApiValueError(f"Normalize: the image has {channels} channels, mean {self.mean.size}")
        shape = (-1,) if self.is_hwc else (-1, 1, 1)
        return (array - self.mean.reshape(shape)) / self.std.reshape(shape)


class HWC2CHW:
    """[height, width, channels] -> [channels, height, width]."""

    def __call__(self, image: Any) -> np.ndarray:
        array = np.asarray(image)
        if array.ndim not in (2, 3):
            raise ApiValueError(f"HWC2CHW: an image has 2 or 3 dimensions, not shape {array.shape}")
        return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


class ToTensor:
    """[height, width, channels] of bytes -> [channels, height, width] in [0, 1]."""

    def __init__(self, output_type: Any = np.float32) -> None:
        self.output_type = getattr(output_type, "numpy", output_type)

    def __call__(self, image: Any) -> np.ndarray:
        return (HWC2CHW()(image).astype(np.float32) / np.float32(255)).astype(self.output_type)


class Resize:
    """The image in another size: (height, width), or an int for the shorter side."""

    def __init__(self, size: Any, interpolation: str = Inter.LINEAR) -> None:
        if not isinstance(size, int) and not (isinstance(size, (tuple, list)) and len(size) == 2):
            raise ApiTypeError(f"Resize: size must be an integer or (height, width), not {size!r}")
        if interpolation not in (Inter.NEAREST, Inter.LINEAR):
            raise ApiValueError(f"Resize: interpolation {interpolation!r} is not supported")
        self.size = size
        self.interpolation = interpolation

    def __call__(self, image: Any) -> np.ndarray:
        array = np.asarray(image)
        height, width = array.shape[:2]
        if isinstance(self.size, int):
            shorter = min(height, width)
            target = (round(height * self.size / shorter), round(width * self.size / shorter))
        else:
            target = (int(self.size[0]), int(self.size[1]))
        rows, columns = _places(height, target[0]), _places(width, target[1])
        if self.interpolation == Inter.NEAREST:
            return array[rows.round().astype(int)][:, columns.round().astype(int)]
        return _bilinear(array, rows, columns)


def _places(size: int, target: int) -> np.ndarray:
    """Where the centres of `target` pixels lie in a row of `size` pixels."""
    return np.clip((np.arange(target) + 0.5) * size / target - 0.5, 0, size - 1)


def _bilinear(array: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    values = array.astype(np.float32)
    extra = (None,) * (array.ndim - 2)
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    bottom = np.minimum(top + 1, array.shape[0] - 1)
    right = np.minimum(left + 1, array.shape[1] - 1)
    down = (rows - top).astype(np.float32)[(slice(None), None, *extra)]
    across = (columns - left).astype(np.float32)[(None, slice(None), *extra)]
    upper = values[top][:, left] * (1 - across) + values[top][:, right] * across
    lower = values[bottom][:, left] * (1 - across) + values[bottom][:, right] * across
    mixed = upper * (1 - down) + lower * down
    return mixed.astype(array.dtype) if array.dtype.kind == "f" else np.rint(mixed).astype(array.dtype)


class RandomHorizontalFlip:
    """The image mirrored with probability `prob`, drawn from NumPy's global generator."""

    def __init__(self, prob: float = 0.5) -> None:
        if not 0 <= prob <= 1:
            raise ApiValueError(f"RandomHorizontalFlip: prob {prob} must be from 0 to 1")
        self.prob = prob

    def __call__(self, image: Any) -> np.ndarray:
        array = np.asarray(image)
        return np.ascontiguousarray(array[:, ::-1]) if np.random.random() < self.prob else array


class RandomCrop:
    """A piece of `size` of the padded image, its place drawn from NumPy's global generator.

    Args: size: an integer or (height, width). padding: on all sides, or (left, top, right, bottom),
    filled with 0.
    """

    def __init__(self, size: Any, padding: Any = None, **_: Any) -> None:
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        edges = (0,) if padding is None else (padding,) if isinstance(padding, int) else tuple(padding)
        if len(edges) not in (1, 2, 4):
            raise ApiValueError(f"RandomCrop: padding {padding!r} must be 1, 2 or 4 numbers")
        self.padding = edges * (4 // len(edges))

    def __call__(self, image: Any) -> np.ndarray:
        left, top, right, bottom = self.padding
        array = np.asarray(image)
        array = np.pad(array, ((top, bottom), (left, right), *[(0, 0)] * (array.ndim - 2)))
        height, width = self.size
        if height > array.shape[0] or width > array.shape[1]:
            raise ApiValueError(f"RandomCrop: size {self.size} exceeds the padded image {array.shape[:2]}")
        y = np.random.randint(array.shape[0] - height + 1)
        x = np.random.randint(array.shape[1] - width + 1)
        return array[y : y + height, x : x + width]
