"""These operations put channels into another order or space, and numbers of pixels under a matrix."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.row_values import flag
from mspc.data.dataset.vision.enums import Inter
from mspc.data.dataset.vision.pixels import Normalize
from mspc.data.dataset.vision.resize import Resize


class ConvertMode(IntEnum):
    """From which order of channels an image goes into which."""

    COLOR_BGR2BGRA = COLOR_RGB2RGBA = 0
    COLOR_BGRA2BGR = COLOR_RGBA2RGB = 1
    COLOR_BGR2RGBA = COLOR_RGB2BGRA = 2
    COLOR_RGBA2BGR = COLOR_BGRA2RGB = 3
    COLOR_BGR2RGB = COLOR_RGB2BGR = 4
    COLOR_BGRA2RGBA = COLOR_RGBA2BGRA = 5
    COLOR_BGR2GRAY = 6
    COLOR_RGB2GRAY = 7
    COLOR_GRAY2BGR = COLOR_GRAY2RGB = 8
    COLOR_GRAY2BGRA = COLOR_GRAY2RGBA = 9
    COLOR_BGRA2GRAY = 10
    COLOR_RGBA2GRAY = 11


_TAKEN: dict[int, tuple[int, tuple[int, ...]]] = {
    0: (3, (0, 1, 2, 3)), 1: (4, (0, 1, 2)), 2: (3, (2, 1, 0, 3)), 3: (4, (2, 1, 0)), 4: (3, (2, 1, 0)),
    5: (4, (2, 1, 0, 3)), 8: (1, (0, 0, 0)), 9: (1, (0, 0, 0, 1)),
}  # fmt: skip
"""How many channels a mode takes, and which of them, and of one that is opaque behind them, become the new ones."""
_GREY = {6: (3, (2, 1, 0)), 7: (3, (0, 1, 2)), 10: (4, (2, 1, 0)), 11: (4, (0, 1, 2))}
"""How many channels a mode takes, and where red, green and blue stand."""
_LIGHT = (0.299, 0.587, 0.114)
"""What red, green and blue count for in grey, by Rec. 601."""


class ConvertColor(EachOperation):
    """An image [height, width, channels], or [height, width] if it is grey, with other channels.

    Args:
        convert_mode: a `ConvertMode`.
    """

    def __init__(self, convert_mode: ConvertMode) -> None:
        if not isinstance(convert_mode, ConvertMode):
            raise ApiTypeError(f"ConvertColor: convert_mode must be a ConvertMode, not {convert_mode!r}")
        self.mode = convert_mode

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        count, places = (_GREY if self.mode in _GREY else _TAKEN)[int(self.mode)]
        image = value[..., None] if value.ndim == 2 else value
        if image.ndim != 3 or image.shape[2] != count:
            wanted = f"{count} channels" if count > 1 else "one channel"
            raise ApiValueError(f"ConvertColor: {self.mode.name} takes {wanted}, and the image has shape {value.shape}")
        if self.mode in _GREY:
            grey = image[..., list(places)].astype(np.float64) @ np.array(_LIGHT)
            return (np.rint(grey) if value.dtype.kind in "iu" else grey).astype(value.dtype)
        most = np.iinfo(value.dtype).max if value.dtype.kind in "iu" else 1
        opaque = np.full((*image.shape[:2], 1), most, value.dtype)
        return np.concatenate((image, opaque), 2)[..., list(places)]


class _OfColours(EachOperation):
    """Takes colours from 0 to 1 apart, of images with channels first, or last with is_hwc."""

    def __init__(self, is_hwc: bool = False) -> None:
        self.is_hwc = flag(type(self).__name__, "is_hwc", is_hwc)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        axis = -1 if self.is_hwc else -3
        if value.ndim not in (3, 4) or value.shape[axis] != 3:
            raise ApiValueError(f"{type(self).__name__}: the image has no 3 channels in its shape {value.shape}")
        kind = value.dtype if value.dtype.kind == "f" else np.dtype(np.float32)
        return np.stack(self.changed(*np.moveaxis(value.astype(kind), axis, 0)), axis).astype(kind)

    def changed(self, *channels: np.ndarray) -> list[np.ndarray]:
        """The three new channels."""
        raise NotImplementedError


class RgbToHsv(_OfColours):
    """Red, green and blue as hue, saturation and value, all from 0 to 1, of the type of a floating-point image. Smith
    1978."""

    def changed(self, *channels: np.ndarray) -> list[np.ndarray]:
        red, green, blue = channels
        most, least = np.maximum.reduce(channels), np.minimum.reduce(channels)
        width = most - least
        divisor = np.where(width == 0, 1, width)
        turn = np.select(
            [most == red, most == green], [(green - blue) / divisor % 6, 2 + (blue - red) / divisor],
            4 + (red - green) / divisor,
        )  # fmt: skip
        return [np.where(width == 0, 0, turn / 6), width / np.where(most == 0, 1, most), most]


class HsvToRgb(_OfColours):
    """Hue, saturation and value, all from 0 to 1, as red, green and blue, of the type of a floating-point image. Smith
    1978."""

    def changed(self, *channels: np.ndarray) -> list[np.ndarray]:
        hue, saturation, value = channels
        shares = [np.clip(np.abs((hue * 6 + begin) % 6 - 3) - 1, 0, 1) for begin in (0, 4, 2)]
        return [value * (1 - saturation * (1 - share)) for share in shares]


class NormalizePad(EachOperation):
    """`Normalize`, with a channel of zeros behind the others.

    Args:
        dtype: "float32" or "float16", of what comes out. is_hwc: channels are last, else first.
    """

    def __init__(self, mean: Any, std: Any, dtype: str = "float32", is_hwc: bool = True) -> None:
        if dtype not in ("float32", "float16"):
            raise ApiValueError(f"NormalizePad: dtype must be 'float32' or 'float16', not {dtype!r}")
        self.normalize, self.kind = Normalize(mean, std, is_hwc), np.dtype(dtype)
        self.axis = -1 if is_hwc else -3

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        found = np.asarray(self.normalize(value)).astype(self.kind)
        found = found[..., None] if found.ndim == 2 else found
        return np.concatenate((found, np.zeros_like(np.take(found, [0], self.axis))), self.axis)


class LinearTransformation(EachOperation):
    """(the numbers of an image, one behind the other, - mean_vector) @ transformation_matrix, in the image's shape."""

    def __init__(self, transformation_matrix: Any, mean_vector: Any) -> None:
        self.matrix, self.mean = np.asarray(transformation_matrix), np.asarray(mean_vector)
        if self.matrix.ndim != 2 or self.matrix.shape != (self.mean.size, self.mean.size) or self.mean.ndim != 1:
            raise ApiValueError(
                f"LinearTransformation: a matrix of shape {self.matrix.shape} and a mean of shape {self.mean.shape} "
                "must be (n, n) and (n,)"
            )

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.size != self.mean.size:
            sizes = f"an image of {value.size} numbers for a mean of {self.mean.size}"
            raise ApiValueError(f"LinearTransformation: {sizes}")
        return ((value.reshape(-1) - self.mean) @ self.matrix).reshape(value.shape)


class RandomResize(EachOperation):
    """The image in another size, as `Resize`, by a way to find pixels that is sampled for each image."""

    def __init__(self, size: Any) -> None:
        self.resizes = [Resize(size, method) for method in (Inter.NEAREST, Inter.BILINEAR, Inter.BICUBIC, Inter.AREA)]

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        resize = self.resizes[int(draws.uniform()[0] * len(self.resizes))]
        return np.asarray(resize.many(value[np.newaxis], draws)[0])
