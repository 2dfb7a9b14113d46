"""First values of a tensor, which follow a distribution: one number, ones at certain places, or random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, DType

MIN_SHARE = 1e-4
"""The least share of a normal distribution that a truncated one may cover: values outside are drawn again."""

Array = Any


@dataclass(frozen=True)
class Distribution:
    """A distribution of first values. kind: its name in `program.json`. random: its numbers are drawn."""

    kind: ClassVar[str]
    random: ClassVar[bool] = False

    def check(self) -> None:
        """Raise ValueError if a parameter is wrong: a description may come from a damaged file."""


@dataclass(frozen=True)
class Filled(Distribution):
    """Every element is `value`."""

    kind: ClassVar[str] = "Constant"
    value: bool | int | float

    def check(self) -> None:
        if type(self.value) not in (bool, int, float):
            raise ValueError(f"value is {self.value!r}, not a number")


@dataclass(frozen=True)
class Diagonal(Distribution):
    """A matrix with ones on its diagonal, zeros elsewhere."""

    kind: ClassVar[str] = "Identity"


@dataclass(frozen=True)
class _Drawn(Distribution):
    """A distribution of random Float32 numbers."""

    random: ClassVar[bool] = True

    def check(self) -> None:
        """Raise ValueError if a parameter is no finite number."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{entry.name} is {value!r}, not a finite number")

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class NormalDistribution(_Drawn):
    """Normal distribution with deviation `sigma` around `mean`."""

    kind: ClassVar[str] = "Normal"
    sigma: float
    mean: float

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        return generator.standard_normal(shape, np.float32) * np.float32(self.sigma) + np.float32(self.mean)


@dataclass(frozen=True)
class UniformDistribution(_Drawn):
    """Uniform distribution in [-scale, scale)."""

    kind: ClassVar[str] = "Uniform"
    scale: float

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        return (generator.random(shape, np.float32) * np.float32(2) - np.float32(1)) * np.float32(self.scale)


@dataclass(frozen=True)
class TruncatedNormalDistribution(_Drawn):
    """Normal distribution with deviation `sigma` around `mean`; values outside mean + [a, b] sigma are drawn again."""

    kind: ClassVar[str] = "TruncatedNormal"
    sigma: float
    mean: float
    a: float
    b: float

    def check(self) -> None:
        super().check()
        share = (math.erf(self.b / math.sqrt(2)) - math.erf(self.a / math.sqrt(2))) / 2
        if share < MIN_SHARE:
            raise ValueError(f"from {self.a:g} to {self.b:g} deviations there is next to no value to draw")

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Array:
        values = np.asarray(generator.standard_normal(shape, np.float32))
        outside = (values < self.a) | (values > self.b)
        while outside.any():
            values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
            outside = (values < self.a) | (values > self.b)
        return values * np.float32(self.sigma) + np.float32(self.mean)


STREAM = 0x496E6974
"""Number that separates the random stream of initial values from other streams of the same seed."""

BLOCK = 1 << 19
"""Most elements that are drawn together. Every block of a tensor has its own random numbers, so a slice needs only the
blocks that intersect it."""

LARGEST_SEED = 2**32 - 1

Slices = tuple[slice, ...]
Draw = Callable[[Any, tuple[int, ...]], Any]
"""Function of a NumPy generator and a shape that returns an array of the shape, or one number for all elements."""

_KINDS: list[type[Distribution]] = [
    Filled, Diagonal, NormalDistribution, UniformDistribution, TruncatedNormalDistribution
]
DISTRIBUTIONS = {each.kind: each for each in _KINDS}
"""Distributions by their names in `program.json`."""


@dataclass(frozen=True)
class Description:
    """Description of first values that are not made yet.

    seed, counter: choose the random numbers; tensors of one seed and different counters are independent.
    zero_row: this index of the first dimension holds zeros instead, such as the padding row of an embedding table.
    """

    distribution: Distribution
    shape: tuple[int, ...]
    dtype: DType
    seed: int = 0
    counter: int = 0
    zero_row: int | None = None

    def check(self) -> None:
        """Raise MspcError if no values can be made from the description."""
        try:
            self.distribution.check()
        except ValueError as error:
            raise MspcError(f"the initializer makes no {self.dtype}: {error}") from None
        except OverflowError:
            raise MspcError(f"the initializer makes no {self.dtype}: one of its numbers is no Float64") from None
        if isinstance(self.distribution, Filled) and not (
            self.dtype.is_float and type(self.distribution.value) is float  # fits all of them
        ):
            try:
                np.full((), self.distribution.value, self.dtype.numpy)
            except (ValueError, OverflowError):
                raise MspcError(f"{self.distribution.value} is no number of {self.dtype}", kind=ValueError) from None
        if isinstance(self.distribution, Diagonal) and len(self.shape) != 2:
            raise MspcError(f"the initializer Identity makes matrices, not a tensor of shape {self.shape}")
        if self.zero_row is not None and not (self.shape and 0 <= self.zero_row < self.shape[0]):
            raise MspcError(f"a tensor of shape {self.shape} has no row {self.zero_row} to be zero")

    @property
    def is_zero(self) -> bool:
        """Whether all bytes of the values are known to be 0."""
        return isinstance(self.distribution, Filled) and not any(self._number(self.distribution).tobytes())

    def _number(self, distribution: Filled) -> Array:
        return np.full((), distribution.value, self.dtype.numpy)

    def fill(self, slices: Slices | None = None) -> Array:
        """Return the values in `slices` of the global tensor (None: all of it), as a new array. Raise MspcError if no
        values can be made from the description."""
        self.check()
        bounds = _bounds(self.shape, slices)
        sizes = tuple(max(0, stop - start) for start, stop in bounds)
        if isinstance(self.distribution, Filled):
            # Zeros are untouched memory, which costs no time.
            number = self._number(self.distribution)
            result = np.zeros(sizes, number.dtype) if self.is_zero else np.full(sizes, number)
        elif isinstance(self.distribution, Diagonal):
            result = np.eye(*sizes, k=bounds[0][0] - bounds[1][0], dtype=self.dtype.numpy)
        else:
            assert isinstance(self.distribution, _Drawn)
            stream = RandomStream(self.seed, self.counter)
            result = draw_blocks(self.distribution.draw, stream, self.shape, self.dtype, slices)
        clear_row(result, self.zero_row, self.shape, slices)
        return result

    def entry(self) -> dict[str, Any]:
        """Return the entry of `program.json` for it, without shape and element type."""
        found: dict[str, Any] = {"initializer": self.distribution.kind}
        for field in fields(self.distribution):
            value = getattr(self.distribution, field.name)
            found[field.name] = value if isinstance(value, int) or math.isfinite(value) else str(value)
        if self.distribution.random:
            found |= {"seed": self.seed, "counter": self.counter}
        if self.zero_row is not None:
            found["zero_row"] = self.zero_row
        return found


def read_description(entry: Any, shape: tuple[int, ...], dtype: DType) -> Description:
    """Return the description in an entry of `program.json`. Raise ValueError if a name is unknown or missing, or a
    value is of the wrong kind, and MspcError if no values can be made from it."""
    if not isinstance(entry, dict):
        raise ValueError(f"it is {type(entry).__name__}, not an object")
    rest: dict[Any, Any] = dict(entry)  # pyright: ignore[reportUnknownArgumentType]  # JSON, fully checked below
    name = rest.pop("initializer", None)
    kind = DISTRIBUTIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"unknown initializer {name!r}; known are {', '.join(DISTRIBUTIONS)}")
    try:
        values = {field.name: _number(rest.pop(field.name), kind is Filled) for field in fields(kind)}
        seed, counter = (rest.pop("seed"), rest.pop("counter")) if kind.random else (0, 0)
    except KeyError as error:
        raise ValueError(f"the initializer {name} lacks {error.args[0]!r}") from None
    zero_row = rest.pop("zero_row", None)
    if rest:
        raise ValueError(f"the initializer {name} has no {next(iter(rest))!r}")
    _check_natural("seed", seed, LARGEST_SEED)
    _check_natural("counter", counter)
    if zero_row is not None:
        _check_natural("zero_row", zero_row)
    found = Description(kind(**values), shape, dtype, seed, counter, zero_row)
    found.check()
    return found


def _check_natural(what: str, value: Any, most: int = 2**63 - 1) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{what} is {value!r}, not an integer from 0 to {most}")


def _number(value: Any, endless: bool) -> Any:
    """Return a number from a file, in which infinities and NaN are words."""
    return float(value) if endless and value in ("inf", "-inf", "nan") else value


@dataclass(frozen=True)
class RandomStream:
    """The random numbers of one tensor."""

    seed: int
    counter: int

    def generator(self, block: int = 0) -> Any:
        """Return the random generator of one block; generators of different blocks are 2^128 draws apart."""
        philox = np.random.Philox(np.random.SeedSequence([self.seed, STREAM, self.counter]))
        if block:
            state: Any = philox.state
            philox = np.random.Philox(key=state["state"]["key"], counter=np.array([0, 0, block, 0], np.uint64))
        return np.random.Generator(philox)


def draw_blocks(draw: Draw, stream: RandomStream, shape: tuple[int, ...], dtype: DType, slices: Slices | None) -> Array:
    """Return the values in `slices`; only one further block is in memory at a time.

    A block is a range of one dimension with all of the later dimensions, at one index of the earlier dimensions.
    """
    if not shape:
        return np.asarray(draw(stream.generator(), ())).astype(dtype.numpy)
    bounds = _bounds(shape, slices)
    result = np.empty([max(0, stop - start) for start, stop in bounds], dtype.numpy)
    if not result.size:
        return result
    dim = next(d for d in range(len(shape)) if math.prod(shape[d + 1 :]) <= BLOCK)
    rows = min(shape[dim], max(1, BLOCK // math.prod(shape[dim + 1 :])))
    blocks = -(-shape[dim] // rows)
    start, stop = bounds[dim]
    below = tuple(slice(*bound) for bound in bounds[dim + 1 :])
    for place in np.ndindex(result.shape[:dim]):
        above = 0
        for i, (begin, _), n in zip(place, bounds, shape, strict=False):
            above = above * n + begin + i
        for block in range(start // rows, (stop - 1) // rows + 1):
            first, last = block * rows, min(shape[dim], (block + 1) * rows)
            values = draw(stream.generator(above * blocks + block), (last - first, *shape[dim + 1 :]))
            begin, end = max(start, first), min(stop, last)
            result[place][begin - start : end - start] = values[(slice(begin - first, end - first), *below)]
    return result


def part_of(values: Any, shape: tuple[int, ...], dtype: DType, slices: Slices | None) -> Array:
    """Return the part in `slices` of `values` broadcast to `shape`, as a new array."""
    broadcast = np.broadcast_to(np.asarray(values), shape)
    return np.array((broadcast if slices is None else broadcast[slices]).astype(dtype.numpy, copy=False), order="C")


def clear_row(part: Array, row: int | None, shape: tuple[int, ...], slices: Slices | None) -> None:
    """Set row `row` of a tensor's first dimension to 0 in `part`, its elements in `slices`, if the row is in it."""
    if row is None:
        return
    place = row - _bounds(shape, slices)[0][0]
    if 0 <= place < len(part):
        part[place] = 0


def exact_in(description: Description, dtype: DType) -> bool:
    """Return whether values made in `dtype` equal the described values cast to it: nothing is rounded twice."""
    made = description.distribution
    if isinstance(made, Filled):
        first = np.full((), made.value, description.dtype.numpy).astype(dtype.numpy)
        return np.array_equal(first, np.full((), made.value, dtype.numpy), equal_nan=dtype.is_float)
    return isinstance(made, Diagonal) or description.dtype == FLOAT32


def _bounds(shape: tuple[int, ...], slices: Slices | None) -> list[tuple[int, int]]:
    return [s.indices(n)[:2] for s, n in zip(slices or (slice(None),) * len(shape), shape, strict=True)]
