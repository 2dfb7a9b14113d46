"""Initializers say how the first values of parameters are sampled."""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any

import numpy as np

from mspc.api.common.seed import next_initial_value
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.initial_value import (
    Description,
    Diagonal,
    DiagonalKernel,
    Distribution,
    Filled,
    NormalDistribution,
    RandomStream,
    TruncatedNormalDistribution,
    UniformDistribution,
)
from mspc.ir.types import FLOAT32

__all__: tuple[str, ...] = ()


class Initializer:
    """How values are sampled. mspc's own say it as data, by `distribution`; those of scripts override
    `_initialize(array)`, which fills an array, as in MindSpore, or `draw`."""

    def __init__(self, **kwargs: Any) -> None:
        """Scripts' own initializers hand their settings on to here; nobody asks for them."""

    def _initialize(self, arr: Any) -> None:
        raise NotImplementedError

    def __call__(self, arr: Any) -> None:
        """Fill an array with values of its shape and element type."""
        arr[...] = self.draw(RandomStream(*next_initial_value()).generator(), arr.shape)

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        """What samples a tensor of `shape`, where the distribution depends on it."""
        return self

    independent = False
    """Whether every element is sampled in the same way, so that a slice of a tensor can be sampled alone. Of others
    the global tensor is sampled, of which the slice is taken."""

    needs_random = True

    def distribution(self) -> Distribution | None:
        """The values as data; None where only `draw` knows."""
        return None

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        """Values of `shape`, or one number for all."""
        if sampled_by(self) == "_initialize":
            return self._filled(generator, shape)
        init = self.of_shape(shape)
        found = init.distribution()
        if found is None:
            raise NotImplementedError(f"{type(self).__name__} draws no values")
        if isinstance(found, Filled):
            return found.value
        if isinstance(found, Diagonal | DiagonalKernel):
            return Description(found, shape, FLOAT32).fill()
        return found.draw(generator, shape)

    def _filled(self, generator: Any, shape: tuple[int, ...]) -> Any:
        """What `_initialize` makes. NumPy's own random numbers are this tensor's meanwhile, so that they do not depend
        on when and on which rank it is made."""
        array = np.zeros(shape, np.float32)
        before: Any = np.random.get_bit_generator()
        np.random.set_bit_generator(np.random.MT19937(int(generator.integers(2**63))))
        try:
            self._initialize(array)
        finally:
            np.random.set_bit_generator(before)
        return array

    def __repr__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in sorted(vars(self).items()))
        return f"{type(self).__name__}({values})"


def sampled_by(init: Initializer) -> str:
    """The method by which a subclass draws values itself, "draw" or "_initialize"; "" where what it says as data holds,
    as no class below that has a method of its own."""
    return _sampling_method(type(init))


@functools.cache
def _sampling_method(cls: type[Initializer]) -> str:
    for kind in cls.__mro__:
        if "distribution" in vars(kind) or "of_shape" in vars(kind):
            return ""
        for name in ("draw", "_initialize"):
            if name in vars(kind):
                return name
    return ""


class Constant(Initializer):
    """Every element is `value`, a number or an array of the parameter's shape."""

    needs_random = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def distribution(self) -> Distribution | None:
        value = self.value.item() if isinstance(self.value, np.generic) else self.value
        return Filled(value) if isinstance(value, bool | int | float) else None

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        return self.value


class Zero(Constant):
    """Every element is 0."""

    def __init__(self) -> None:
        super().__init__(0)


class One(Constant):
    """Every element is 1."""

    def __init__(self) -> None:
        super().__init__(1)


class Normal(Initializer):
    """Normal distribution with deviation `sigma` around `mean`."""

    independent = True

    def __init__(self, sigma: float = 0.01, mean: float = 0.0) -> None:
        self.sigma = sigma
        self.mean = mean

    def distribution(self) -> Distribution | None:
        return NormalDistribution(plain(self.sigma), plain(self.mean))


class Uniform(Initializer):
    """Uniform in [-scale, scale)."""

    independent = True

    def __init__(self, scale: float = 0.07) -> None:
        self.scale = scale

    def distribution(self) -> Distribution | None:
        return UniformDistribution(plain(self.scale))


class TruncatedNormal(Initializer):
    """Normal distribution, values outside mean + [a, b] sigma sampled again."""

    independent = True

    def __init__(self, sigma: float = 0.01, mean: float = 0.0, a: float = -2.0, b: float = 2.0) -> None:
        self.sigma = sigma
        self.mean = mean
        self.a = a
        self.b = b

    def distribution(self) -> Distribution | None:
        return TruncatedNormalDistribution(*map(plain, (self.sigma, self.mean, self.a, self.b)))


class _ScaledInitializer(Initializer):
    """A distribution whose scale depends on the shape of the tensor; subclasses override `of_shape`."""


class XavierUniform(_ScaledInitializer):
    """Uniform in gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fan_in, fan_out = fans(shape)
        return Uniform(self.gain * math.sqrt(6.0 / (fan_in + fan_out)))


class XavierNormal(_ScaledInitializer):
    """Normal with deviation gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fan_in, fan_out = fans(shape)
        return Normal(self.gain * math.sqrt(2.0 / (fan_in + fan_out)))


class HeUniform(_ScaledInitializer):
    """Uniform in sqrt(3) * gain / sqrt(fan) (He et al. 2015)."""

    def __init__(
        self, negative_slope: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
    ) -> None:
        self.negative_slope = negative_slope
        self.mode = mode
        self.nonlinearity = nonlinearity

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        return Uniform(math.sqrt(3.0) * self.deviation(shape))

    def deviation(self, shape: tuple[int, ...]) -> float:
        return gain(self.nonlinearity, self.negative_slope) / math.sqrt(fan_of(shape, self.mode))


class HeNormal(HeUniform):
    """Normal with deviation gain / sqrt(fan) (He et al. 2015)."""

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        return Normal(self.deviation(shape))


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight [out, in, ...]. Raises ValueError below two dimensions."""
    if len(shape) < 2:
        raise ApiValueError(f"this initializer needs at least 2 dimensions, not shape {shape}")
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


def fan_of(shape: tuple[int, ...], mode: str) -> int:
    """One of the two. Raises ValueError for another mode, or below two dimensions."""
    found = dict(zip(("fan_in", "fan_out"), fans(shape), strict=True)).get(str(mode).lower())
    if found is None:
        raise ApiValueError(f"mode {mode!r} is neither 'fan_in' nor 'fan_out'")
    return found


def gain(nonlinearity: str, slope: float | None = None) -> float:
    """The factor by which a nonlinearity asks for larger weights; `slope` is that of "leaky_relu", None for 0.01.

    Raises:
        ValueError: an unknown nonlinearity. TypeError: a slope that is no number.
    """
    slope = 0.01 if slope is None else slope
    if isinstance(slope, bool) or not isinstance(slope, numbers.Real):
        raise ApiTypeError(f"negative_slope must be a number, not {slope!r}")
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75}
    gains |= {f"conv{kind}{n}d": 1.0 for kind in ("", "_transpose") for n in (1, 2, 3)}
    gains["leaky_relu"] = math.sqrt(2.0 / (1.0 + float(slope) ** 2))
    if nonlinearity not in gains:
        raise ApiValueError(f"unknown nonlinearity {nonlinearity!r}; known are {', '.join(gains)}")
    return gains[nonlinearity]


def plain(value: Any) -> Any:
    """A setting of an initializer as a number of Python."""
    return value.item() if isinstance(value, np.generic) else value
