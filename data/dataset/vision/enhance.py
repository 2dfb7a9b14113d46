"""These operations change colours point by point; each has a random form, which MindSpore calls Random....

Mostly by Pillow, for images of bytes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation
from mspc.data.dataset.pillow import enhancements, image_of, of_images
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.row_values import integer
from mspc.data.dataset.vision.color import with_hue
from mspc.data.dataset.vision.shapes import number, probability, span


def _like(made: Any, value: np.ndarray) -> np.ndarray:
    return np.asarray(made).reshape(value.shape)


class _Enhanced(EachOperation):
    """By a factor: 0 takes everything away, 1 changes nothing."""

    keeps_images: ClassVar[bool] = True
    tool: ClassVar[str] = ""
    argument: ClassVar[str] = ""

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return _like(getattr(enhancements(), self.tool)(image_of(value)).enhance(self.factor), value)

    def _set(self, factor: Any) -> None:
        self.factor = number(type(self).__name__, self.argument, factor)
        if self.factor < 0:
            raise ApiValueError(f"{type(self).__name__}: {self.argument} {factor} must not be negative")


class AdjustBrightness(_Enhanced):
    """Brighter by a factor; 0 is black."""

    tool, argument = "Brightness", "brightness_factor"

    def __init__(self, brightness_factor: float) -> None:
        self._set(brightness_factor)


class AdjustContrast(_Enhanced):
    """More contrast by a factor; 0 is grey."""

    tool, argument = "Contrast", "contrast_factor"

    def __init__(self, contrast_factor: float) -> None:
        self._set(contrast_factor)


class AdjustSaturation(_Enhanced):
    """More colour by a factor; 0 has none."""

    tool, argument = "Color", "saturation_factor"

    def __init__(self, saturation_factor: float) -> None:
        self._set(saturation_factor)


class AdjustSharpness(_Enhanced):
    """Sharper by a factor; 0 is blurred."""

    tool, argument = "Sharpness", "sharpness_factor"

    def __init__(self, sharpness_factor: float) -> None:
        self._set(sharpness_factor)


class AdjustHue(EachOperation):
    """Hue moved by a part of its circle, from -0.5 to 0.5."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, hue_factor: float) -> None:
        self.factor = number("AdjustHue", "hue_factor", hue_factor)
        if not -0.5 <= self.factor <= 0.5:
            raise ApiValueError(f"AdjustHue: hue_factor {hue_factor} must be from -0.5 to 0.5")

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return np.asarray(with_hue(image_of(value), self.factor))


class AdjustGamma(EachOperation):
    """gain * v^gamma of every value v, from 0 to 1; bytes are taken as parts of 255."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, gamma: float, gain: float = 1) -> None:
        self.gamma, self.gain = number("AdjustGamma", "gamma", gamma), number("AdjustGamma", "gain", gain)
        if self.gamma < 0:
            raise ApiValueError(f"AdjustGamma: gamma {gamma} must not be negative")

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.dtype != np.uint8:
            return np.clip(self.gain * value**self.gamma, 0, 1).astype(value.dtype)
        return np.clip(self.gain * (value / 255.0) ** self.gamma * 255.0, 0, 255).astype(np.uint8)


class AutoContrast(EachOperation):
    """Values stretched so that the least is 0 and the greatest 255, without `cutoff` percent at both ends and without
    the values `ignore`."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, cutoff: float = 0.0, ignore: Any = None) -> None:
        self.cutoff = number("AutoContrast", "cutoff", cutoff)
        if not 0 <= self.cutoff < 50:
            raise ApiValueError(f"AutoContrast: cutoff {cutoff} must be from 0 to 50, without 50")
        given = [] if ignore is None else ignore if isinstance(ignore, tuple | list) else [ignore]
        self.ignore = [integer("AutoContrast", "ignore", value, 0, 255) for value in given]

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return _like(of_images().autocontrast(image_of(value), self.cutoff, self.ignore or None), value)


class Equalize(EachOperation):
    """Values spread so that all are about as frequent."""

    keeps_images: ClassVar[bool] = True

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return _like(of_images().equalize(image_of(value)), value)


class Invert(EachOperation):
    """255 less every value."""

    keeps_images: ClassVar[bool] = True

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.dtype != np.uint8:
            raise ApiTypeError(f"Invert: takes bytes (UInt8), not {value.dtype}")
        return 255 - value


class Posterize(EachOperation):
    """The first `bits` bits of every byte, from 0 to 8."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, bits: int) -> None:
        self.bits = integer("Posterize", "bits", bits, 0)
        if self.bits > 8:
            raise ApiValueError(f"Posterize: bits {bits} must be at most 8")

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.dtype != np.uint8:
            raise ApiTypeError(f"{type(self).__name__}: takes bytes (UInt8), not {value.dtype}")
        return value & np.uint8((0xFF << (8 - self.bits)) & 0xFF)


class Solarize(EachOperation):
    """255 less the values from the first to the second threshold, or less those of one value alone; others stay."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, threshold: Any) -> None:
        pair = (threshold, threshold) if isinstance(threshold, int | float) else threshold
        self.least, self.most = (0.0, 0.0) if pair in ((0, 0), [0, 0]) else span("Solarize", "threshold", pair)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.dtype != np.uint8:
            raise ApiTypeError(f"{type(self).__name__}: takes bytes (UInt8), not {value.dtype}")
        return np.where((value >= self.least) & (value <= self.most), 255 - value, value)


# With a probability, or by a random factor -------------------------------------------------------


class _Maybe(EachOperation):
    """An operation with probability `prob`."""

    keeps_images: ClassVar[bool] = True
    prob: float
    inner: EachOperation

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return self.inner.single(value, draws) if float(draws.uniform()[0]) < self.prob else value


class RandomAutoContrast(_Maybe):
    """`AutoContrast` with probability `prob`."""

    def __init__(self, cutoff: float = 0.0, ignore: Any = None, prob: float = 0.5) -> None:
        self.inner, self.prob = AutoContrast(cutoff, ignore), probability("RandomAutoContrast", prob)


class RandomEqualize(_Maybe):
    """`Equalize` with probability `prob`."""

    def __init__(self, prob: float = 0.5) -> None:
        self.inner, self.prob = Equalize(), probability("RandomEqualize", prob)


class RandomInvert(_Maybe):
    """`Invert` with probability `prob`."""

    def __init__(self, prob: float = 0.5) -> None:
        self.inner, self.prob = Invert(), probability("RandomInvert", prob)


class RandomAdjustSharpness(_Maybe):
    """`AdjustSharpness` by a factor, the degree, with probability `prob`."""

    def __init__(self, degree: float, prob: float = 0.5) -> None:
        self.inner, self.prob = AdjustSharpness(degree), probability("RandomAdjustSharpness", prob)


class _Between(EachOperation):
    """By a factor sampled uniformly from (least, most)."""

    keeps_images: ClassVar[bool] = True
    inner: ClassVar[type[_Enhanced]]

    def __init__(self, degrees: Any = (0.1, 1.9)) -> None:
        self.least, self.most = span(type(self).__name__, "degrees", degrees)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        factor = self.least + float(draws.uniform()[0]) * (self.most - self.least)
        return self.inner(factor).single(value, draws)  # type: ignore[call-arg]  # each takes its factor


class RandomColor(_Between):
    """`AdjustSaturation` by a factor sampled from `degrees`, (least, most)."""

    inner = AdjustSaturation


class RandomSharpness(_Between):
    """`AdjustSharpness` by a factor sampled from `degrees`, (least, most)."""

    inner = AdjustSharpness


class RandomPosterize(EachOperation):
    """`Posterize` with a number of bits sampled from (least, most), or with one."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, bits: Any = (8, 8)) -> None:
        least, most = (bits, bits) if isinstance(bits, int) else span("RandomPosterize", "bits", bits)
        self.least, self.most = Posterize(int(least)).bits, Posterize(int(most)).bits

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        sampled = self.least + int(float(draws.uniform()[0]) * (self.most - self.least + 1))
        return Posterize(min(sampled, self.most)).single(value, draws)


class RandomSolarize(EachOperation):
    """`Solarize` of the values between two sampled from (least, most)."""

    keeps_images: ClassVar[bool] = True

    def __init__(self, threshold: Any = (0, 255)) -> None:
        self.least, self.most = span("RandomSolarize", "threshold", threshold)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        sampled = sorted(self.least + float(draws.uniform(place)[0]) * (self.most - self.least) for place in (0, 1))
        return Solarize((sampled[0], max(sampled[1], 1e-6))).single(value, draws)


class RandomLighting(EachOperation):
    """Colours moved along the principal directions of those of natural images, by normal numbers times alpha.
    Krizhevsky et al. 2012."""

    VALUES: ClassVar[np.ndarray] = np.array([55.46, 4.794, 1.148])
    VECTORS: ClassVar[np.ndarray] = np.array(
        [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
    )
    keeps_images: ClassVar[bool] = True

    def __init__(self, alpha: float = 0.05) -> None:
        self.alpha = number("RandomLighting", "alpha", alpha)
        if self.alpha < 0:
            raise ApiValueError(f"RandomLighting: alpha {alpha} must not be negative")

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.ndim != 3 or value.shape[2] != 3:
            raise ApiValueError(f"RandomLighting: an image has shape (height, width, 3), not {value.shape}")
        even = np.array([float(draws.uniform(place)[0]) for place in range(6)])
        normal = np.sqrt(-2 * np.log(1 - even[:3])) * np.cos(2 * np.pi * even[3:])  # Box and Muller 1958
        shifted = value + self.VECTORS @ (normal * self.alpha * self.VALUES)
        return np.clip(shifted, 0, 255).astype(value.dtype) if value.dtype == np.uint8 else shifted.astype(value.dtype)
