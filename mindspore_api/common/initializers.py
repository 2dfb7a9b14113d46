"""Initializers, and tensors of initial values that are computed when they are read."""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any

import numpy as np

from mspc.ir.initial_value import (
    Description,
    Diagonal,
    Distribution,
    Filled,
    NormalDistribution,
    RandomStream,
    Slices,
    TruncatedNormalDistribution,
    UniformDistribution,
    clear_row,
    draw_blocks,
    exact_in,
    part_of,
)
from mspc.ir.types import FLOAT32, DType, dtype_of
from mspc.mindspore_api.common.seed import next_initial_value
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError

__all__ = [
    "HeNormal", "HeUniform", "Identity", "InitialValue", "Initializer", "Normal",
    "Uniform", "XavierUniform", "as_initializer", "checked_shape", "initial_value",
]  # fmt: skip


class Initializer:
    """Distribution of initial values. mspc's own describe it as data, by `distribution`; initializers of scripts
    override `_initialize(array)`, which fills an array, as in MindSpore, or `draw`."""

    def __init__(self, **kwargs: Any) -> None:
        """Accept and ignore the settings of scripts' own initializers."""

    def _initialize(self, arr: Any) -> None:
        raise NotImplementedError

    def __call__(self, arr: Any) -> None:
        """Fill an array with values of its shape and element type."""
        arr[...] = self.draw(RandomStream(*next_initial_value()).generator(), arr.shape)

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        """Return the initializer for a tensor of `shape`, if the distribution depends on it."""
        return self

    independent = False
    """Whether every element is sampled in the same way, so that a slice of a tensor can be sampled alone. Otherwise the
    global tensor is sampled and then sliced."""

    needs_random = True

    def distribution(self) -> Distribution | None:
        """Return the distribution as data, or None if only `draw` defines it."""
        return None

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        """Return values of `shape`, or one number for all."""
        if sampled_by(self) == "_initialize":
            return self._filled(generator, shape)
        init = self.of_shape(shape)
        found = init.distribution()
        if found is None:
            raise NotImplementedError(f"{type(self).__name__} draws no values")
        if isinstance(found, Filled):
            return found.value
        if isinstance(found, Diagonal):
            return Description(found, shape, FLOAT32).fill()
        return found.draw(generator, shape)

    def _filled(self, generator: Any, shape: tuple[int, ...]) -> Any:
        """Return the result of `_initialize`. NumPy's global generator is replaced by this tensor's during the call, so
        that the values do not depend on time or rank."""
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
    """Return the method by which a subclass draws values itself, "draw" or "_initialize"; "" if `distribution` is
    valid, because no class overrides it with a later method."""
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


class XavierUniform(Initializer):
    """Uniform in gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fan_in, fan_out = fans(shape)
        return Uniform(self.gain * math.sqrt(6.0 / (fan_in + fan_out)))


class XavierNormal(Initializer):
    """Normal with deviation gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fan_in, fan_out = fans(shape)
        return Normal(self.gain * math.sqrt(2.0 / (fan_in + fan_out)))


class HeUniform(Initializer):
    """Uniform in sqrt(3) * gain / sqrt(fan) (He et al. 2015)."""

    def __init__(self, negative_slope: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> None:
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
    """Return (fan_in, fan_out) of a weight [out, in, ...]. Raise ValueError below two dimensions."""
    if len(shape) < 2:
        raise ApiValueError(f"this initializer needs at least 2 dimensions, not shape {shape}")
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


def fan_of(shape: tuple[int, ...], mode: str) -> int:
    """Return fan_in or fan_out. Raise ValueError for another mode, or below two dimensions."""
    found = dict(zip(("fan_in", "fan_out"), fans(shape), strict=True)).get(str(mode).lower())
    if found is None:
        raise ApiValueError(f"mode {mode!r} is neither 'fan_in' nor 'fan_out'")
    return found


def gain(nonlinearity: str, slope: float | None = None) -> float:
    """Return the factor by which weights are enlarged for a nonlinearity; `slope` is that of "leaky_relu", None for
    0.01. Raise ValueError for an unknown nonlinearity; TypeError if the slope is no number."""
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
    """Return a setting of an initializer as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


class Identity(Initializer):
    """Ones on the diagonal of a matrix."""

    needs_random = False

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        if len(shape) != 2:
            raise ApiValueError(f"Identity needs a matrix, not shape {shape}")
        return self

    def distribution(self) -> Distribution | None:
        return Diagonal()


NAMED: dict[str, type[Initializer]] = {
    "zeros": Zero, "zero": Zero, "ones": One, "one": One, "normal": Normal, "uniform": Uniform,
    "truncatednormal": TruncatedNormal, "trunc_normal": TruncatedNormal,
    "xavieruniform": XavierUniform, "xavier_uniform": XavierUniform, "xaviernormal": XavierNormal,
    "xavier_normal": XavierNormal, "heuniform": HeUniform, "he_uniform": HeUniform, "henormal": HeNormal,
    "he_normal": HeNormal, "identity": Identity,
}  # fmt: skip


def as_initializer(init: Any) -> Initializer:
    """Return the Initializer for a name, a number, a class or an object. Raise ValueError if no initializer has this
    name; TypeError if `init` is none of these."""
    if isinstance(init, Initializer):
        return init
    if isinstance(init, type) and issubclass(init, Initializer):
        return init()
    if isinstance(init, str):
        found = NAMED.get(init.lower())
        if found is None:
            raise ApiValueError(f"unknown initializer {init!r}; known are {', '.join(sorted(NAMED))}", code="E1008")
        try:
            return found()
        except TypeError:
            raise ApiValueError(f"initializer {init!r} needs arguments: use {found.__name__}(...)") from None
    if isinstance(init, numbers.Number):
        return Constant(init)
    raise ApiTypeError(f"an initializer is a name, a number or an Initializer, not {type(init).__name__}")


class InitialValue:
    """Values to be sampled, with initializer, shape, dtype, seed and counter.

    zero_row: index of the first dimension that is filled with zeros instead. in_parts: whether the cost of a part is
    proportional to its size.
    """

    in_parts = False

    def __init__(self, init: Initializer, shape: tuple[int, ...], dtype: DType) -> None:
        self.init = init
        self.shape = shape
        self.dtype = dtype
        self.seed, self.counter = next_initial_value()
        self.zero_row: int | None = None

    @staticmethod
    def filled(number: Any, shape: tuple[int, ...], dtype: DType) -> InitialValue:
        """Return values of one number; making them does not change the random numbers of later values."""
        made = object.__new__(InitialValue)
        made.init, made.shape, made.dtype = Constant(number), shape, dtype
        made.seed = made.counter = 0
        made.zero_row = None
        return made

    def description(self) -> Description | None:
        """Return the values as data, or None if only an initializer from outside mspc, or an array, defines them. Raise
        MspcError if the initializer cannot make such a tensor."""
        found = None if sampled_by(self.init) else self.init.of_shape(self.shape).distribution()
        if found is None:
            return None
        described = Description(found, self.shape, self.dtype, self.seed, self.counter, self.zero_row)
        described.check()
        return described

    def fill(self, slices: Slices | None = None) -> np.ndarray:
        """Return the values in `slices` of the global tensor (None: all of it), the same as in the global tensor.

        Apart from the result, at most one block is in memory at a time, unless the initializer draws the whole tensor
        at once.
        """
        described = self.description()
        if described is not None:
            return described.fill(slices)
        own = sampled_by(self.init)
        init = self.init if own else self.init.of_shape(self.shape)
        stream = RandomStream(self.seed, self.counter)
        if own != "_initialize" and init.needs_random and init.independent:
            result = draw_blocks(init.draw, stream, self.shape, self.dtype, slices)
        else:
            is_random = own == "_initialize" or init.needs_random
            values = init.draw(stream.generator() if is_random else None, self.shape)
            result = part_of(values, self.shape, self.dtype, slices)
        clear_row(result, self.zero_row, self.shape, slices)
        return result

    def restyled(self, dtype: DType) -> InitialValue:
        """Return values from the same random numbers in another element type."""
        return self._with(dtype=dtype)

    def cast(self, dtype: DType) -> InitialValue | None:
        """Return these values cast to another element type; None if that rounds twice, so that they must be made
        first."""
        if dtype == self.dtype:
            return self
        described = self.description()
        return self.restyled(dtype) if described is not None and exact_in(described, dtype) else None

    def without_row(self, row: int) -> InitialValue:
        """Return the same values with zeros in one row."""
        return self._with(zero_row=row)

    def _with(self, **changes: Any) -> InitialValue:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape given as int, list or tuple. Raise TypeError or ValueError for anything else."""
    if type(shape) is tuple and all([type(n) is int and n >= 0 for n in shape]):
        return shape
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(n, (int, np.integer)) for n in sizes):
        raise ApiTypeError(f"a shape is a tuple of integers, not {shape!r}")
    if any(n < 0 for n in sizes):
        raise ApiValueError(f"shape {tuple(sizes)} has a negative size")
    return tuple(int(n) for n in sizes)


def initial_value(init: Any, shape: Any, dtype: Any) -> InitialValue:
    """Return the lazy values of a parameter of `shape`."""
    return InitialValue(as_initializer(init), checked_shape(shape), dtype_of(dtype))
