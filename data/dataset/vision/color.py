"""These operations change brightness, contrast, saturation and hue, by Pillow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation
from mspc.data.dataset.pillow import enhancements, image_of, library
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.vision.shapes import number, probability


class RandomColorAdjust(EachOperation):
    """Brightness, contrast and saturation multiplied by random factors and hue moved by a random part of its circle, in
    this order.

    Args: each (least, most), or one number: factors from 1 - number (not below 0) to 1 + number, hue from - number to
        number, at most 0.5.
    """

    keeps_images: ClassVar[bool] = True

    def __init__(
        self, brightness: Any = (1, 1), contrast: Any = (1, 1), saturation: Any = (1, 1), hue: Any = (0, 0)
    ) -> None:
        self.brightness = _factors("brightness", brightness)
        self.contrast = _factors("contrast", contrast)
        self.saturation = _factors("saturation", saturation)
        self.hue = _hue(hue)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.ndim != 3 or value.shape[2] != 3:
            raise ApiValueError(f"RandomColorAdjust: an image has shape (height, width, 3), not {value.shape}")
        image = image_of(value)
        tools: tuple[tuple[tuple[float, float], Callable[[Any], Any]], ...] = (
            (self.brightness, enhancements().Brightness),
            (self.contrast, enhancements().Contrast),
            (self.saturation, enhancements().Color),
        )
        for place, ((least, most), tool) in enumerate(tools):
            if (least, most) != (1, 1):
                image = tool(image).enhance(least + float(draws.uniform(place)[0]) * (most - least))
        if self.hue != (0, 0):
            shift = self.hue[0] + float(draws.uniform(3)[0]) * (self.hue[1] - self.hue[0])
            image = with_hue(image, shift)
        return np.asarray(image)


def with_hue(image: Any, shift: float) -> Any:
    """An image with its hue moved by a part of its circle."""
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue).astype(np.int32) + int(shift * 255)).astype(np.uint8)
    return library().merge("HSV", (image_of(turned), saturation, value)).convert("RGB")


def _pair(what: str, value: Any, centre: float) -> tuple[float, float]:
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ApiTypeError(f"RandomColorAdjust: {what} must be a number or (least, most), not {value!r}")
        least, most = (number("RandomColorAdjust", what, entry) for entry in value)
        return least, most
    around = number("RandomColorAdjust", what, value)
    if around < 0:
        raise ApiValueError(f"RandomColorAdjust: {what} {value} must not be negative")
    return centre - around, centre + around


def _factors(what: str, value: Any) -> tuple[float, float]:
    least, most = _pair(what, value, 1)
    if not isinstance(value, (tuple, list)):
        least = max(0.0, least)
    if not 0 <= least <= most:
        raise ApiValueError(f"RandomColorAdjust: {what} {value} must rise, from 0 on")
    return least, most


def _hue(value: Any) -> tuple[float, float]:
    least, most = _pair("hue", value, 0)
    if not -0.5 <= least <= most <= 0.5:
        raise ApiValueError(f"RandomColorAdjust: hue {value} must rise, from -0.5 to 0.5")
    return least, most


class Grayscale(EachOperation):
    """The image without colours, with 1 channel or 3 equal ones."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise ApiValueError(f"Grayscale: num_output_channels must be 1 or 3, not {num_output_channels!r}")
        self.channels = num_output_channels

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        grey = np.asarray(image_of(value).convert("L"))
        return grey if self.channels == 1 else np.repeat(grey[..., None], 3, -1)


class RandomGrayscale(EachOperation):
    """The image without colours with probability `prob`, with as many channels as before."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, prob: float = 0.1) -> None:
        self.prob = probability("RandomGrayscale", prob)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if draws.uniform()[0] >= self.prob:
            return value
        return Grayscale(3).single(value, draws) if value.ndim == 3 and value.shape[2] == 3 else value
