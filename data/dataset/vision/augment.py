"""These operations are sampled from lists of operations, by the papers that propose them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.row_values import integer
from mspc.data.dataset.vision.affine import affine_map, resample_of, resampled
from mspc.data.dataset.vision.enhance import (
    AdjustBrightness,
    AdjustContrast,
    AdjustSaturation,
    AdjustSharpness,
    AutoContrast,
    Equalize,
    Posterize,
    Solarize,
)
from mspc.data.dataset.vision.enums import Inter
from mspc.data.dataset.vision.shapes import LARGEST, fill_of, probability, require_image

_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_FACTORS = {
    "Brightness": AdjustBrightness, "Color": AdjustSaturation, "Contrast": AdjustContrast, "Sharpness": AdjustSharpness,
}  # fmt: skip
_NAMES = ("Identity", *_MOVES, *_FACTORS, "Posterize", "Solarize", "AutoContrast", "Equalize")


class _Augment(EachOperation):
    """strongest: the greatest magnitude of an operation, of a width for shifts along x."""

    keeps_images: ClassVar[bool] = True
    strongest: ClassVar[dict[str, float]]

    def __init__(self, num_magnitude_bins: int, interpolation: Inter, fill_value: Any) -> None:
        name = type(self).__name__
        self.bins = integer(name, "num_magnitude_bins", num_magnitude_bins, 2)
        self.interpolation, self.fill = resample_of(name, interpolation), fill_of(name, fill_value)

    def changed(self, image: np.ndarray, name: str, step: int, draws: PipelineDraws) -> np.ndarray:
        """The image after one operation of a magnitude, from 0 to bins - 1, whose direction is random if it has one."""
        part = step / (self.bins - 1)
        sign = -1.0 if float(draws.uniform(1)[0]) < 0.5 else 1.0
        if name in _MOVES:
            amount = sign * part * self._most(name, image.shape)
            angle = math.degrees(math.atan(amount))
            shear = (angle * (name == "ShearX"), angle * (name == "ShearY"))
            shift = (amount * (name == "TranslateX"), amount * (name == "TranslateY"))
            places = affine_map(image.shape, amount if name == "Rotate" else 0.0, shift, 1.0, shear)
            return resampled(image, places, self.interpolation, self.fill)
        if name in _FACTORS:
            return _FACTORS[name](1 + sign * part * self.strongest["factor"]).single(image, draws)
        if name == "Posterize":
            return Posterize(8 - round(part * self.strongest[name])).single(image, draws)
        if name == "Solarize":
            return Solarize((255 * (1 - part), 255.0)).single(image, draws)
        plain: dict[str, Callable[[], EachOperation]] = {"AutoContrast": AutoContrast, "Equalize": Equalize}
        return plain[name]().single(image, draws) if name in plain else image

    def _most(self, name: str, shape: tuple[int, ...]) -> float:
        return self.strongest[name[:5]]


class RandAugment(_Augment):
    """`num_ops` operations sampled uniformly, each of one magnitude, from 0 to num_magnitude_bins - 1; directions are
    sampled.

    Source: Cubuk et al., RandAugment (2019).
    """

    strongest: ClassVar[dict[str, float]] = {
        "Shear": 0.3, "Trans": 150 / 331, "Rotat": 30.0, "factor": 0.9, "Posterize": 4.0,
    }  # fmt: skip

    def __init__(
        self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31,
        interpolation: Inter = Inter.NEAREST, fill_value: Any = 0,
    ) -> None:  # fmt: skip
        super().__init__(num_magnitude_bins, interpolation, fill_value)
        self.count = integer("RandAugment", "num_ops", num_ops, most=LARGEST)
        self.magnitude = integer("RandAugment", "magnitude", magnitude, 0)
        if self.magnitude >= self.bins:
            raise ApiValueError(f"RandAugment: magnitude {magnitude} must be below num_magnitude_bins {self.bins}")

    def _most(self, name: str, shape: tuple[int, ...]) -> float:
        size = {"TranslateX": shape[1], "TranslateY": shape[0]}.get(name, 1)
        return self.strongest[name[:5]] * size

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("RandAugment", value.shape)
        for place in range(self.count):
            own = draws.inside(place)
            value = self.changed(value, _NAMES[int(own.integer(0, len(_NAMES) - 1)[0])], self.magnitude, own)
        return value


class TrivialAugmentWide(_Augment):
    """One operation sampled uniformly, of a magnitude sampled uniformly from wide ranges.

    Source: Müller and Hutter, TrivialAugment (2021).
    """

    strongest: ClassVar[dict[str, float]] = {
        "Shear": 0.99, "Trans": 32.0, "Rotat": 135.0, "factor": 0.99, "Posterize": 6.0,
    }  # fmt: skip

    def __init__(
        self, num_magnitude_bins: int = 31, interpolation: Inter = Inter.NEAREST, fill_value: Any = 0
    ) -> None:  # fmt: skip
        super().__init__(num_magnitude_bins, interpolation, fill_value)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_image("TrivialAugmentWide", value.shape)
        name = _NAMES[int(draws.integer(0, len(_NAMES) - 1)[0])]
        return self.changed(value, name, int(draws.integer(2, self.bins - 1)[0]), draws)


class UniformAugment:
    """`num_ops` of some operations, each sampled uniformly and taken with a probability of one half, from NumPy's
    global generator.

    Source: LingChen et al., UniformAugment (2020).
    """

    def __init__(self, transforms: Sequence[Callable[..., Any]], num_ops: int = 2) -> None:
        self.transforms = _operations("UniformAugment", transforms)
        self.count = integer("UniformAugment", "num_ops", num_ops, most=LARGEST)

    def __call__(self, *values: Any) -> Any:
        for place in np.random.randint(len(self.transforms), size=self.count):
            if np.random.random() < 0.5:
                made = self.transforms[place](*values)
                values = made if isinstance(made, tuple) else (made,)
        return values if len(values) > 1 else values[0]


class RandomSelectSubpolicy:
    """One of some lists of (operation, probability), sampled uniformly from NumPy's global generator; each of its
    operations is taken with its probability."""

    def __init__(self, policy: Sequence[Sequence[tuple[Callable[..., Any], float]]]) -> None:
        name = "RandomSelectSubpolicy"
        if not isinstance(policy, list | tuple) or not policy:
            raise ApiTypeError(f"{name}: policy must be a list of lists of (operation, probability), not {policy!r}")
        self.policy: list[list[tuple[Callable[..., Any], float]]] = []
        for part in policy:
            if not isinstance(part, list | tuple) or not all(isinstance(e, tuple) and len(e) == 2 for e in part):
                raise ApiTypeError(f"{name}: a policy must be a list of (operation, probability), not {part!r}")
            operations = _operations(name, [operation for operation, _ in part])
            chances = [probability(name, chance) for _, chance in part]
            self.policy.append(list(zip(operations, chances, strict=True)))

    def __call__(self, *values: Any) -> Any:
        for operation, chance in self.policy[np.random.randint(len(self.policy))]:
            if np.random.random() < chance:
                made = operation(*values)
                values = made if isinstance(made, tuple) else (made,)
        return values if len(values) > 1 else values[0]


def _operations(name: str, transforms: Any) -> list[Callable[..., Any]]:
    if not isinstance(transforms, list | tuple) or not transforms:
        raise ApiTypeError(f"{name}: a list of operations is needed, not {transforms!r}")
    for transform in transforms:
        if not callable(transform) or isinstance(transform, type):
            raise ApiTypeError(f"{name}: {transform!r} is no operation")
    return list(transforms)
