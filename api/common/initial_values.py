"""Initial values of parameters, drawn lazily: the same seed and counter give the same numbers on every rank.

An `InitialValue` knows shape, dtype and how to draw; nothing is drawn before someone asks, and a rank
may ask for its slice alone.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from mspc.api import state
from mspc.api.common import seed
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.types import DType, dtype_of

_WHAT = 0x496E6974
"""Keeps the random stream of initial values apart from other streams of the same seed."""


_BLOCK = 1 << 19
"""Elements that are drawn together. Every block of a tensor has random numbers of its own, so a slice needs only the
blocks that it meets."""


class Initializer:
    """How values are drawn. Subclasses override `draw`."""

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        """What draws a tensor of `shape`, where the distribution depends on it."""
        return self

    independent = False
    """Whether every element is drawn in the same way, so that parts of a tensor can be drawn alone."""

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        """Values of `shape`, or one number for all."""
        raise NotImplementedError(f"{type(self).__name__} draws no values")

    needs_random = True

    def __repr__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in sorted(vars(self).items()))
        return f"{type(self).__name__}({values})"


class Constant(Initializer):
    """Every element is `value`, a number or an array of the parameter's shape."""

    needs_random = False

    def __init__(self, value: Any) -> None:
        self.value = value

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

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        return generator.standard_normal(shape, np.float32) * np.float32(self.sigma) + np.float32(self.mean)


class Uniform(Initializer):
    """Uniform in [-scale, scale)."""

    independent = True

    def __init__(self, scale: float = 0.07) -> None:
        self.scale = scale

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        return (generator.random(shape, np.float32) * np.float32(2) - np.float32(1)) * np.float32(self.scale)


class TruncatedNormal(Initializer):
    """Normal distribution, values outside mean + [a, b] sigma drawn again."""

    independent = True

    def __init__(self, sigma: float = 0.01, mean: float = 0.0, a: float = -2.0, b: float = 2.0) -> None:
        self.sigma = sigma
        self.mean = mean
        self.a = a
        self.b = b

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        values = generator.standard_normal(shape, np.float32)
        outside = (values < self.a) | (values > self.b)
        while outside.any():
            values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
            outside = (values < self.a) | (values > self.b)
        return values * np.float32(self.sigma) + np.float32(self.mean)


class _Scaled(Initializer):
    """A distribution whose scale depends on the shape of the tensor; subclasses override `of_shape`."""

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        return self.of_shape(shape).draw(generator, shape)


class XavierUniform(_Scaled):
    """Uniform in gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fan_in, fan_out = fans(shape)
        return Uniform(self.gain * math.sqrt(6.0 / (fan_in + fan_out)))


class XavierNormal(_Scaled):
    """Normal with deviation gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fan_in, fan_out = fans(shape)
        return Normal(self.gain * math.sqrt(2.0 / (fan_in + fan_out)))


class HeUniform(_Scaled):
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
        fan_in, fan_out = fans(shape)
        fan = {"fan_in": fan_in, "fan_out": fan_out}.get(self.mode)
        if fan is None:
            raise ApiValueError(
                f"{type(self).__name__}: mode {self.mode!r} is neither 'fan_in' nor 'fan_out'"
            )
        return gain(self.nonlinearity, self.negative_slope) / math.sqrt(fan)


class HeNormal(HeUniform):
    """Normal with deviation gain / sqrt(fan) (He et al. 2015)."""

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        return Normal(self.deviation(shape))


class Identity(Initializer):
    """Ones on the diagonal of a matrix."""

    needs_random = False

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        if len(shape) != 2:
            raise ApiValueError(f"Identity needs a matrix, not shape {shape}")
        return np.eye(*shape, dtype=np.float32)


NAMED: dict[str, type[Initializer]] = {
    "zeros": Zero, "zero": Zero, "ones": One, "one": One, "normal": Normal, "uniform": Uniform,
    "truncatednormal": TruncatedNormal, "trunc_normal": TruncatedNormal,
    "xavieruniform": XavierUniform, "xavier_uniform": XavierUniform, "xaviernormal": XavierNormal,
    "xavier_normal": XavierNormal, "heuniform": HeUniform, "he_uniform": HeUniform, "henormal": HeNormal,
    "he_normal": HeNormal, "identity": Identity,
}  # fmt: skip


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight [out, in, ...]. Raises ValueError below two dimensions."""
    if len(shape) < 2:
        raise ApiValueError(f"this initializer needs at least 2 dimensions, not shape {shape}")
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


def gain(nonlinearity: str, slope: float) -> float:
    """The factor by which a nonlinearity asks for larger weights. Raises ValueError for an unknown one."""
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75}
    gains["leaky_relu"] = math.sqrt(2.0 / (1.0 + slope * slope))
    if nonlinearity not in gains:
        raise ApiValueError(f"unknown nonlinearity {nonlinearity!r}; known are {', '.join(gains)}")
    return gains[nonlinearity]


class InitialValue:
    """Values that will be drawn: by what, of which shape and dtype, with which seed and counter."""

    def __init__(self, init: Initializer, shape: tuple[int, ...], dtype: DType) -> None:
        session = state.current()
        self.init = init
        self.shape = shape
        self.dtype = dtype
        self.seed = seed.DEFAULT_SEED if session.seed is None else session.seed
        self.counter = session.initializers
        session.initializers += 1

    def fill(self, slices: tuple[slice, ...] | None = None) -> np.ndarray:
        """The values in `slices` of the whole tensor (None: all of it), the same as in the whole tensor.

        Besides the result no more than a block is held at a time, unless the initializer draws a tensor as one.
        """
        init = self.init.of_shape(self.shape)
        if init.needs_random and init.independent:
            return self._fill_blocks(init, slices)
        if not self.init.needs_random and np.ndim(value := self.init.draw(None, self.shape)) == 0:
            shape = self.shape
            if slices is not None:
                shape = tuple(len(range(*s.indices(n))) for s, n in zip(slices, shape, strict=True))
            return np.full(shape, value, self.dtype.numpy)
        generator = self._generator(0) if self.init.needs_random else None
        values = np.asarray(self.init.draw(generator, self.shape))
        whole = np.broadcast_to(values.astype(self.dtype.numpy, copy=False), self.shape)
        return np.array(whole if slices is None else whole[slices])

    def _generator(self, block: int) -> Any:
        """Random numbers of one block; those of different blocks are 2^128 draws apart."""
        sequence = np.random.SeedSequence([self.seed, _WHAT, self.counter])
        philox = np.random.Philox(sequence)
        if block:
            key = philox.state["state"]["key"]
            philox = np.random.Philox(key=key, counter=np.array([0, 0, block, 0], np.uint64))
        return np.random.Generator(philox)

    def _fill_blocks(self, init: Initializer, slices: tuple[slice, ...] | None) -> np.ndarray:
        """A block is a range of one dimension with all that lies below, at one place of the dimensions above."""
        shape = self.shape
        if not shape:
            return np.asarray(init.draw(self._generator(0), ())).astype(self.dtype.numpy)
        if slices is None:
            slices = (slice(None),) * len(shape)
        bounds = [s.indices(n)[:2] for s, n in zip(slices, shape, strict=True)]
        result = np.empty([max(0, stop - start) for start, stop in bounds], self.dtype.numpy)
        if not result.size:
            return result
        dim = next(d for d in range(len(shape)) if math.prod(shape[d + 1 :]) <= _BLOCK)
        rows = min(shape[dim], max(1, _BLOCK // math.prod(shape[dim + 1 :])))
        blocks = -(-shape[dim] // rows)
        start, stop = bounds[dim]
        below = tuple(slice(*bound) for bound in bounds[dim + 1 :])
        for place in np.ndindex(result.shape[:dim]):
            above = 0
            for i, (begin, _), n in zip(place, bounds, shape, strict=False):
                above = above * n + begin + i
            for block in range(start // rows, (stop - 1) // rows + 1):
                first, last = block * rows, min(shape[dim], (block + 1) * rows)
                values = init.draw(self._generator(above * blocks + block), (last - first, *shape[dim + 1 :]))
                begin, end = max(start, first), min(stop, last)
                result[place][begin - start : end - start] = values[(slice(begin - first, end - first), *below)]
        return result

    def restyled(self, dtype: DType) -> InitialValue:
        """The same values in another element type."""
        other = object.__new__(InitialValue)
        other.__dict__.update(self.__dict__, dtype=dtype)
        return other


def as_initializer(init: Any) -> Initializer:
    """The Initializer that a name, a number, a class or an object stands for.

    Raises:
        ValueError: no initializer has this name. TypeError: `init` is nothing of these.
    """
    if isinstance(init, Initializer):
        return init
    if isinstance(init, type) and issubclass(init, Initializer):
        return init()
    if isinstance(init, str):
        found = NAMED.get(init.lower())
        if found is None:
            raise ApiValueError(f"unknown initializer {init!r}; known are {', '.join(sorted(NAMED))}")
        return found()
    if isinstance(init, numbers.Number):
        return Constant(init)
    raise ApiTypeError(f"an initializer is a name, a number or an Initializer, not {type(init).__name__}")


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape given as int, list or tuple. Raises TypeError or ValueError."""
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(n, (int, np.integer)) for n in sizes):
        raise ApiTypeError(f"a shape is a tuple of integers, not {shape!r}")
    if any(n < 0 for n in sizes):
        raise ApiValueError(f"shape {tuple(sizes)} has a negative size")
    return tuple(int(n) for n in sizes)


def initial_value(init: Any, shape: Any, dtype: Any) -> InitialValue:
    """The lazy values of a parameter of `shape`."""
    return InitialValue(as_initializer(init), checked_shape(shape), dtype_of(dtype))
