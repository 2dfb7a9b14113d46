"""These operations apply affine maps to images: they rotate, shift, scale and shear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.vision.enums import Inter
from mspc.data.dataset.vision.shapes import fill_of, inter_of, number, require_image

_RESAMPLES = (Inter.NEAREST, Inter.LINEAR)


def affine_map(
    shape: tuple[int, ...], degrees: float, shift: tuple[float, float], scale: float, shear: tuple[float, float]
) -> np.ndarray:
    """[3, 3]: where a place (x, y, 1) of an image [height, width, ...] goes: sheared along x and y by degrees, scaled
    and turned clockwise around the middle, and shifted by pixels (x, y)."""
    turn, along, down = (math.radians(angle) for angle in (degrees, *shear))
    inner = scale / math.cos(down) * np.array([
        [math.cos(turn - down), -math.cos(turn - down) * math.tan(along) - math.sin(turn) * math.cos(down)],
        [math.sin(turn - down), -math.sin(turn - down) * math.tan(along) + math.cos(turn) * math.cos(down)],
    ])  # fmt: skip
    middle = np.array([shape[1] - 1, shape[0] - 1]) / 2
    found = np.eye(3)
    found[:2, :2] = inner
    found[:2, 2] = middle + shift - inner @ middle
    return found


def resampled(image: np.ndarray, places: np.ndarray, resample: Inter, fill: Sequence[float]) -> np.ndarray:
    """The image after the map `places`; what comes from outside of it is `fill`, one value or one for each channel."""
    height, width = image.shape[:2]
    inverse = np.linalg.inv(places)
    y, x = np.mgrid[:height, :width]
    x, y = (inverse[i, 0] * x + inverse[i, 1] * y + inverse[i, 2] for i in (0, 1))
    outside = np.asarray(fill if image.ndim > 2 and len(fill) == image.shape[2] else fill[0], np.float64)

    def values(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        found = image[np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)].astype(np.float64)
        return np.where(inside.reshape(*inside.shape, *[1] * (image.ndim - 2)), found, outside)

    if resample is Inter.NEAREST:
        return values(np.floor(y + 0.5).astype(int), np.floor(x + 0.5).astype(int)).astype(image.dtype)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, along = (part.reshape(*part.shape, *[1] * (image.ndim - 2)) for part in (y - top, x - left))
    upper = (1 - along) * values(top, left) + along * values(top, left + 1)
    lower = (1 - along) * values(top + 1, left) + along * values(top + 1, left + 1)
    made = (1 - down) * upper + down * lower
    return (np.rint(made) if image.dtype.kind in "iu" else made).astype(image.dtype)


class Affine(EachOperation):
    """The image turned clockwise by degrees, shifted by parts (x, y) of its width and height from -1 to 1, scaled, and
    sheared by degrees, (along x, along y) or along x alone. resample: Inter.NEAREST or Inter.BILINEAR; fill_value:
    what comes from outside."""

    keeps_images: ClassVar[bool] = True

    def __init__(
        self, degrees: float, translate: Any, scale: float, shear: Any, resample: Inter = Inter.NEAREST,
        fill_value: Any = 0,
    ) -> None:  # fmt: skip
        self.degrees = number("Affine", "degrees", degrees)
        self.shift = _numbers("Affine", "translate", translate, (2,))
        if any(abs(part) > 1 for part in self.shift):
            raise ApiValueError(f"Affine: translate {translate} must be from -1 to 1")
        self.scale = _above_zero("Affine", scale)
        self.shear = _numbers("Affine", "shear", shear if isinstance(shear, tuple | list) else (shear, 0), (2,))
        self.resample, self.fill = resample_of("Affine", resample), fill_of("Affine", fill_value)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("Affine", value.shape)
        shift = self.shift[0] * value.shape[1], self.shift[1] * value.shape[0]
        places = affine_map(value.shape, self.degrees, shift, self.scale, (self.shear[0], self.shear[1]))
        return resampled(value, places, self.resample, self.fill)


class RandomAffine(EachOperation):
    """`Affine` by numbers sampled uniformly. degrees: (least, most), or so many in both directions. translate: (least,
    most) along x, and as many along y, as parts of width and height. scale: (least, most). shear: degrees as `degrees`,
    along x, or (least, most) along x and along y."""

    keeps_images: ClassVar[bool] = True

    def __init__(
        self, degrees: Any, translate: Any = None, scale: Any = None, shear: Any = None,
        resample: Inter = Inter.NEAREST, fill_value: Any = 0,
    ) -> None:  # fmt: skip
        name = "RandomAffine"
        nothing = (0.0, 0.0)
        shifts = (*nothing, *nothing) if translate is None else _numbers(name, "translate", translate, (2, 4))
        if any(abs(part) > 1 for part in shifts):
            raise ApiValueError(f"{name}: translate {translate} must be from -1 to 1")
        sizes = (1.0, 1.0) if scale is None else _numbers(name, "scale", scale, (2,))
        _above_zero(name, sizes[0])
        shears = nothing if shear is None else _around(name, "shear", shear, (2, 4))
        turned = _around(name, "degrees", degrees, (2,))
        pairs = [turned, (shifts + nothing)[:2], (shifts + nothing)[2:4], sizes, shears[:2], (shears + nothing)[2:4]]
        for what, (least, most) in zip(("degrees", *["translate"] * 2, "scale", *["shear"] * 2), pairs, strict=True):
            if least > most:
                raise ApiValueError(f"{name}: {what} must be (least, most), not ({least}, {most})")
        self.ranges = pairs
        self.resample, self.fill = resample_of(name, resample), fill_of(name, fill_value)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("RandomAffine", value.shape)
        sampled = [
            least + float(draws.uniform(i)[0]) * (most - least) for i, (least, most) in enumerate(self.ranges)
        ]  # fmt: skip
        degrees, x, y, scale, along, down = sampled
        places = affine_map(value.shape, degrees, (x * value.shape[1], y * value.shape[0]), scale, (along, down))
        return resampled(value, places, self.resample, self.fill)


def _numbers(name: str, what: str, given: Any, lengths: tuple[int, ...]) -> tuple[float, ...]:
    if not isinstance(given, tuple | list) or len(given) not in lengths:
        raise ApiTypeError(f"{name}: {what} must be {' or '.join(map(str, lengths))} numbers, not {given!r}")
    return tuple(number(name, what, each) for each in given)


def _around(name: str, what: str, given: Any, lengths: tuple[int, ...]) -> tuple[float, ...]:
    if isinstance(given, tuple | list):
        return _numbers(name, what, given, lengths)
    most = number(name, what, given)
    if most < 0:
        raise ApiValueError(f"{name}: {what} {given} must not be negative")
    return -most, most


def _above_zero(name: str, scale: Any) -> float:
    if number(name, "scale", scale) <= 0:
        raise ApiValueError(f"{name}: scale {scale} must be above 0")
    return float(scale)


def resample_of(name: str, resample: Any) -> Inter:
    """How values between pixels are found. Raises TypeError, ValueError for other ways than the two."""
    if inter_of(name, resample) not in _RESAMPLES:
        raise ApiValueError(f"{name}: resample {resample} is not supported; Inter.NEAREST and Inter.BILINEAR are")
    return resample
