"""Arithmetic on the values of pixels, and where channels stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.api.dataset.draws import Draws
from mspc.api.dataset.operation import Operation
from mspc.api.dataset.rows import flag
from mspc.api.dataset.vision.shapes import channels_of, height_axis, number
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.types import dtype_of


class Rescale(Operation):
    """image * rescale + shift, as Float32."""

    def __init__(self, rescale: float, shift: float) -> None:
        self.rescale = number("Rescale", "rescale", rescale)
        self.shift = number("Rescale", "shift", shift)

    def many(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        result = np.multiply(values, np.float32(self.rescale), dtype=np.float32, casting="unsafe")
        result += np.float32(self.shift)
        return result


class Normalize(Operation):
    """(image - mean) / std, one number per channel, as Float32.

    Args: mean: from 0 to 255. std: above 0. is_hwc: channels are last, else first.
    """

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

    def many(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        height_axis("Normalize", values)
        shape = values.shape
        channels = 1 if values.ndim == 3 else shape[-1] if self.is_hwc else shape[-3]
        if self.mean.size not in (1, channels):
            raise ApiValueError(f"Normalize: the image has {channels} channels, mean {self.mean.size}")
        mean, std = self.mean, self.std
        if self.mean.size == 1:
            mean, std = mean[0], std[0]
        elif self.is_hwc:
            # NumPy is slow over a last dimension of three numbers: whole lines are taken at once.
            mean, std = np.tile(mean, shape[-2]), np.tile(std, shape[-2])
            values = np.ascontiguousarray(values).reshape(*shape[:-2], -1)
        else:
            mean, std = mean[:, None, None], std[:, None, None]
        result = np.subtract(values, mean, dtype=np.float32, casting="unsafe")
        result /= std
        return result.reshape(shape)


class HWC2CHW(Operation):
    """[height, width, channels] -> [channels, height, width]."""

    def many(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        if values.ndim == 3:
            return values[:, None]
        height_axis("HWC2CHW", values)
        return np.ascontiguousarray(np.moveaxis(values, -1, -3))


class ToTensor(Operation):
    """[height, width, channels] of bytes -> [channels, height, width] in [0, 1].

    Args: output_type: element type of the result, of mspc or NumPy.
    """

    def __init__(self, output_type: Any = np.float32) -> None:
        self.output_type = dtype_of(output_type).numpy

    def many(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        channels_of("ToTensor", values)
        if values.ndim > 4:
            raise ApiValueError(f"ToTensor: an image has 2 or 3 dimensions, not shape {values.shape[1:]}")
        first = HWC2CHW().many(values, draws)
        result = np.divide(first, np.float32(255), dtype=np.float32, casting="unsafe")
        return result.astype(self.output_type, copy=False)
