"""This module does arithmetic on the values of pixels, and finds where channels are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.arithmetic import Arithmetic, Step
from mspc.data.dataset.operation import require_numbers
from mspc.data.dataset.row_values import flag
from mspc.data.dataset.vision.shapes import height_axis, number, require_image
from mspc.ir.types import dtype_of


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
