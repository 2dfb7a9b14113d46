"""The first values of a tensor follow a distribution: one number, ones at certain places, or random numbers."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType

LEAST_SHARE = 1e-4
"""The least part of a normal distribution that a truncated one may hold: what is outside is drawn again."""

Array = Any


@dataclass(frozen=True)
class Filled:
    """Every element is `value`."""

    value: bool | int | float
    random: ClassVar[bool] = False

    def check(self) -> None:
        """Raises ValueError for what is no number: a description may come from a damaged file."""
        if type(self.value) not in (bool, int, float):
            raise ValueError(f"value is {self.value!r}, not a number")


@dataclass(frozen=True)
class Diagonal:
    """A matrix with ones on its diagonal, zeros elsewhere."""

    random: ClassVar[bool] = False

    def check(self) -> None:
        """There is nothing to check."""


@dataclass(frozen=True)
class DiagonalKernel:
    """A convolution's weight [out, in, sizes...] that hands channels on: in each of `groups` parts of the first
    dimension there are ones at the middle of the kernel where both channels have one number, zeros elsewhere."""

    groups: int
    random: ClassVar[bool] = False

    def check(self) -> None:
        """Raises ValueError for what is no number of groups."""
        if type(self.groups) is not int or self.groups < 1:
            raise ValueError(f"groups is {self.groups!r}, not a positive integer")

    def part(self, shape: tuple[int, ...], bounds: list[tuple[int, int]], dtype: DType) -> Array:
        """The elements within `bounds`."""
        found = np.zeros([max(0, stop - start) for start, stop in bounds], dtype.numpy)
        outputs = shape[0] // self.groups
        middle = [size // 2 for size in shape[2:]]
        inside = all(start <= place < stop for place, (start, stop) in zip(middle, bounds[2:], strict=True))
        for row in range(*bounds[0]):
            channel = row % outputs
            if inside and bounds[1][0] <= channel < bounds[1][1]:
                place = [index - start for index, (start, _) in zip((row, channel, *middle), bounds, strict=True)]
                found[tuple(place)] = 1
        return found


@dataclass(frozen=True)
class _Drawn:
    """A distribution of Float32 numbers, each element drawn in the same way."""

    random: ClassVar[bool] = True

    def check(self) -> None:
        """Raises ValueError for a parameter that is no finite number."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{entry.name} is {value!r}, not a finite number")

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class NormalDistribution(_Drawn):
    """Deviation `sigma` around `mean`."""

    sigma: float
    mean: float

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        return generator.standard_normal(shape, np.float32) * np.float32(self.sigma) + np.float32(self.mean)


@dataclass(frozen=True)
class UniformDistribution(_Drawn):
    """Uniform in [-scale, scale)."""

    scale: float

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        return (generator.random(shape, np.float32) * np.float32(2) - np.float32(1)) * np.float32(self.scale)


@dataclass(frozen=True)
class TruncatedNormalDistribution(_Drawn):
    """Deviation `sigma` around `mean`; values outside mean + [a, b] sigma are drawn again."""

    sigma: float
    mean: float
    a: float
    b: float

    def check(self) -> None:
        super().check()
        share = (math.erf(self.b / math.sqrt(2)) - math.erf(self.a / math.sqrt(2))) / 2
        if share < LEAST_SHARE:
            raise ValueError(f"from {self.a:g} to {self.b:g} deviations there is next to no value to draw")

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        values = np.asarray(generator.standard_normal(shape, np.float32))
        outside = (values < self.a) | (values > self.b)
        while outside.any():
            values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
            outside = (values < self.a) | (values > self.b)
        return values * np.float32(self.sigma) + np.float32(self.mean)


@dataclass(frozen=True)
class OrthogonalMatrix(_Drawn):
    """`gain` times a matrix [first dimension, product of the others] whose rows, or columns where there are fewer, are
    orthonormal: the Q of a random matrix (Saxe et al. 2014). It can only be drawn for the global tensor at once."""

    gain: float

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        rows, columns = shape[0], math.prod(shape[1:])
        samples = generator.standard_normal((max(rows, columns), min(rows, columns)), np.float32)
        factors: Any = np.linalg.qr(samples)
        found = factors.Q * np.where(np.diagonal(factors.R) < 0, np.float32(-1), np.float32(1))
        return (found if rows >= columns else found.T).reshape(shape) * np.float32(self.gain)


@dataclass(frozen=True)
class SparseMatrix(_Drawn):
    """A matrix of deviation `sigma` around 0, with zeros in a share `sparsity` of every column, rounded up. It can
    only be drawn for the global tensor at once."""

    sparsity: float
    sigma: float

    def check(self) -> None:
        super().check()
        if not 0 <= self.sparsity <= 1:
            raise ValueError(f"sparsity is {self.sparsity!r}, not from 0 to 1")

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        values = generator.standard_normal(shape, np.float32) * np.float32(self.sigma)
        order = generator.random(shape).argsort(axis=0)
        np.put_along_axis(values, order[: math.ceil(self.sparsity * shape[0])], np.float32(0), axis=0)
        return values


Distribution = (
    Filled
    | Diagonal
    | DiagonalKernel
    | NormalDistribution
    | UniformDistribution
    | TruncatedNormalDistribution
    | OrthogonalMatrix
    | SparseMatrix
)
