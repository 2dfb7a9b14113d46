"""The array module of kernels that are written as StableHLO: functions by NumPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from mspc.ops.math.xla_elementwise import NAMES
from mspc.output.stablehlo.arrays import VIEWS, HloArray
from mspc.output.stablehlo.lowering import Lowering
from mspc.output.stablehlo.text import Content, NotWritten

_WORD = 2**64
_ORDERS = {"equal": "EQ", "not_equal": "NE", "less": "LT", "less_equal": "LE", "greater": "GT", "greater_equal": "GE"}
_CHLO = {
    **{name: f"chlo.{name}" for name in ("erf", "erfc")}, "erfinv": "chlo.erf_inv", "gammaln": "chlo.lgamma",
    "psi": "chlo.digamma", "digamma": "chlo.digamma", "i1e": "chlo.bessel_i1e", "zeta": "chlo.zeta",
    "polygamma": "chlo.polygamma", "nextafter": "chlo.next_after", "sinh": "chlo.sinh", "cosh": "chlo.cosh",
    **{f"arc{name}": f"chlo.a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
}  # fmt: skip
"""Operations of CHLO, which XLA expands, by names of NumPy and SciPy."""
_LOG2 = math.log(2)
_COMPOSED: Mapping[str, Callable[..., Any]] = {
    "square": lambda xp, x: x * x, "reciprocal": lambda xp, x: 1 / x, "positive": lambda xp, x: x,
    "isnan": lambda xp, x: x != x, "isinf": lambda xp, x: abs(x) == np.inf, "exp2": lambda xp, x: xp.exp(x * _LOG2),
    "log2": lambda xp, x: xp.log(x) / _LOG2, "log10": lambda xp, x: xp.log(x) / math.log(10),
    "trunc": lambda xp, x: xp.where(x < 0, xp.ceil(x), xp.floor(x)), "logical_not": lambda xp, x: xp.equal(x, 0),
    "floor_divide": lambda xp, a, b: xp.floor(a / b) if xp.result_type(a, b).kind == "f" else (
        xp.applied("quotient", (a - xp.remainder(a, b), b))),
    "remainder": lambda xp, a, b: xp.where(((r := xp.fmod(a, b)) != 0) & ((r < 0) != (b < 0)), r + b, r),
    "hypot": lambda xp, a, b: xp.sqrt(a * a + b * b), "conjugate": lambda xp, x: x if x.dtype.kind != "c" else (
        HloArray(xp, xp.complex_of(x.real, -x.imag))),
    "copysign": lambda xp, a, b: xp.where((b < 0) | (xp.equal(b, 0) & (1 / b < 0)), -abs(a), abs(a)),
    "logaddexp": lambda xp, a, b: xp.where(
        xp.equal(a, b), a + _LOG2, xp.maximum(a, b) + xp.log1p(xp.exp(-abs(a - b)))),
    "xlogy": lambda xp, x, y: xp.where((x == 0) & ~xp.isnan(y), 0 * x, x * xp.log(y)),
    "expit": lambda xp, x: 1 / (1 + xp.exp(-x)), "erfcx": lambda xp, x: xp.exp(x * x) * xp.erfc(x),
    "i1": lambda xp, x: xp.i1e(x) * xp.exp(abs(x)),
}  # fmt: skip
_COMPOSED |= {"conj": _COMPOSED["conjugate"]}  # type: ignore[operator]  # a dictionary
_ALSO = {
    "true_divide": "divide", "quotient": "divide", "left_shift": "shift_left", "right_shift": "shift_right_logical",
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor", "arctan2": "atan2", "isfinite": "is_finite",
    "fmod": "remainder", "abs": "abs",
}  # fmt: skip


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "shape": lambda xp, x: x.shape, "zeros_like": lambda xp, x, dtype=None: xp.zeros(x.shape, dtype or x.dtype),
    "empty_like": lambda xp, x, dtype=None: xp.zeros(x.shape, dtype or x.dtype),
    "ones": lambda xp, shape, dtype=float: xp.zeros(shape, dtype, 1),
    "ones_like": lambda xp, x, dtype=None: xp.zeros(x.shape, dtype or x.dtype, 1),
    "full": lambda xp, shape, number, dtype=None: xp.broadcast_to(xp.asarray(number, dtype), shape).copy(),
    "full_like": lambda xp, x, number, dtype=None: xp.full(x.shape, number, dtype or x.dtype),
    "array": lambda xp, value, dtype=None: xp.asarray(value, dtype).copy(),
    "arange": lambda xp, *ends, dtype=None: HloArray(xp, np.arange(
        *map(int, ends), dtype=None if dtype is None else np.dtype(dtype))),
    "eye": lambda xp, *given, **named: HloArray(xp, np.eye(*given, **named)),
    "indices": lambda xp, shape, dtype=int: HloArray(xp, np.indices(shape, np.dtype(dtype))),
    "flatten": lambda xp, x: x.reshape(-1).copy(),
    "stack": lambda xp, arrays, axis=0: xp.concatenate([xp.expand_dims(each, axis) for each in arrays], axis),
    "as_strided": lambda xp, x, *given: HloArray(xp, x.cell, np.lib.stride_tricks.as_strided(x.part, *given)),
    "tril": lambda xp, x, k=0: xp.where(np.tri(*x.shape[-2:], k, bool), x, np.zeros(1, x.dtype)),
    "triu": lambda xp, x, k=0: xp.where(np.tri(*x.shape[-2:], k - 1, bool), np.zeros(1, x.dtype), x),
    "nan_to_num": lambda xp, x, nan=0.0, posinf=None, neginf=None: xp.where(x != x, nan, xp.where(
        x == np.inf, float(np.finfo(x.dtype).max if posinf is None else posinf), xp.where(
            x == -np.inf, float(np.finfo(x.dtype).min if neginf is None else neginf), x))),
    "cumprod": lambda xp, *args: xp.cumsum(*args, of="multiply"),
    "argmin": lambda xp, *args, **named: xp.argmax(*args, best="min", **named),
    "take_along_axis": lambda xp, x, indices, axis: x[xp.along(indices, axis)],
    "put_along_axis": lambda xp, x, indices, values, axis: x.put(xp.along(indices, axis), values, ""),
    "sort": lambda xp, x, axis=-1: xp.argsort(x, axis, which=0),
    "searchsorted": lambda xp, x, values, side="left": xp.sum(
        x < xp.expand_dims(values, -1) if side == "left" else x <= xp.expand_dims(values, -1), -1),
    "bincount": lambda xp, x, minlength=0: (found := xp.zeros(minlength, np.int64), xp.add.at(found, x, 1))[0],
    "cholesky": lambda xp, x: xp.tril(x.made(xp.emit("cholesky", [x], (x.dtype, x.shape), lower=True))),
    "convolved": lambda xp, way, a, b, along, groups, out: xp.placed(
        a.made(xp.convolution(way, a.content, b.content, along, groups, out.shape)), out),
}  # fmt: skip
"""Functions of the array module."""


class UFunction:
    """An elementwise function, with NumPy's `at` and `accumulate`."""

    def __init__(self, xp: ArrayModule, name: str) -> None:
        self.xp, self.name = xp, name

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None) -> Any:
        made = self.xp.applied(self.name, args)
        return self.xp.placed(made.astype(dtype) if dtype is not None else made, out)

    def at(self, x: HloArray, key: Any, value: Any) -> None:
        x.put(key, value, NAMES[self.name])

    def accumulate(self, x: HloArray, axis: int = 0) -> HloArray:
        ends = {"maximum": _end(x.dtype, 0), "minimum": _end(x.dtype, 1)}
        start = ({"add": 0, "multiply": 1} | ends).get(self.name, -np.inf)
        window, pads = [1] * x.ndim, np.zeros((x.ndim, 2), np.int64)
        window[axis], pads[axis, 0] = x.shape[axis], x.shape[axis] - 1
        region = self.xp.combining(lambda a, b: self(x.made(a), x.made(b)).content, x.dtype)
        return x.made(self.xp.emit("reduce_window", (x, self.xp.uniform(start, x.dtype, ())), (x.dtype, x.shape),
                                   padding=pads, window_dimensions=window, regions=[region]))  # fmt: skip


def _end(dtype: np.dtype[Any], which: int) -> Any:
    """Return the least (0) or the greatest (1) number of a type."""
    if dtype.kind in "iu":
        return (np.iinfo(dtype).min, np.iinfo(dtype).max)[which]
    return bool(which) if dtype.kind == "b" else (-np.inf, np.inf)[which]


@lru_cache(maxsize=4096)
def _dtype(name: str, kinds: tuple[Any, ...]) -> np.dtype[Any]:
    """Return the element type of a function of NumPy for element types, or Python's types of numbers."""
    with np.errstate(all="ignore"):
        return getattr(np, name)(*(np.ones(1, kind) if isinstance(kind, np.dtype) else kind(1) for kind in kinds)).dtype


def _kind(value: Any) -> Any:
    if type(value) in (int, float, bool, complex):
        return type(value)
    return np.dtype(value.dtype) if hasattr(value, "dtype") else np.asarray(value).dtype


class _UInt64:
    """The type UInt64, which converts arrays, too."""

    dtype = np.dtype(np.uint64)

    def __call__(self, value: Any) -> Any:
        return value.astype(np.uint64) if isinstance(value, HloArray) else np.uint64(value)


class ArrayModule(Lowering):
    """NumPy's functions of arrays, as far as they have a form; its parts `linalg` and others are itself."""

    __name__ = "stablehlo"
    uint64 = _UInt64()

    def __init__(self) -> None:
        super().__init__()
        self.linalg = self.lib = self.stride_tricks = self.special = self

    def __getattr__(self, name: str) -> Any:
        if name in NAMES or any(name in each for each in (_ORDERS, _CHLO, _COMPOSED, _ALSO)):
            return UFunction(self, name)
        if name in _FUNCTIONS:
            return partial(_FUNCTIONS[name], self)
        if name in VIEWS:
            return lambda x, *args, **named: self.asarray(x).seen(getattr(np, name), *args, **named)
        if name in _REDUCED:
            return partial(self._reduced, name)
        found = None if name.startswith("__") else getattr(np, name, None)
        if found is None or (callable(found) and not isinstance(found, type) and name != "broadcast_shapes"):
            raise NotWritten(f"{name} has no form in StableHLO")
        return found

    def placed(self, made: HloArray, out: Any) -> Any:
        """Return a result, in `out` if that is given."""
        if out is None:
            return made
        out[...] = made
        return out

    # Elementwise functions

    def asarray(self, value: Any, dtype: Any = None) -> HloArray:
        """Return an array of a value, itself if it is one."""
        if isinstance(value, list | tuple) and any(isinstance(each, HloArray) for each in value):
            value = self.stack(value)
        found = value if isinstance(value, HloArray) else HloArray(self, np.asarray(value))
        return found if dtype is None or found.dtype == dtype else found.astype(dtype)

    def result_type(self, *args: Any) -> np.dtype[Any]:
        return _dtype("add", tuple(map(_kind, args)))

    def applied(self, name: str, args: Sequence[Any]) -> HloArray:
        """Return an elementwise function of arrays, broadcast against each other."""
        mask = next((a.mask for a in args if isinstance(a, HloArray) and a.mask is not None), None)
        if mask is not None:
            made = self.applied(name, [a.made(a.every) if isinstance(a, HloArray) else a for a in args])
            return HloArray(self, made.content, mask=mask)
        if name == "remainder" and type(args[1]) is int and args[1] == _WORD:
            return args[0]  # numbers of 64 bits wrap
        words = any(getattr(a, "dtype", None) == np.uint64 for a in args)
        args = [np.uint64(a % _WORD) if words and type(a) is int else a for a in args]
        if name in _COMPOSED:
            args = [a if type(a) in (int, float) else self.asarray(a) for a in args]
            return self.asarray(_COMPOSED[name](self, *args))
        kinds = tuple(map(_kind, args))
        made = np.dtype(bool) if name in _ORDERS else _dtype(
            name if hasattr(np, name) else "exp" if name in _CHLO else "add", kinds)  # fmt: skip
        own = np.dtype(args[0].dtype) if name in ("abs", "absolute", "isfinite") else made
        taken = bool if name.startswith("logical") else _dtype("add", kinds) if name in _ORDERS else own
        shape = np.broadcast_shapes(*(np.shape(a) for a in args))
        given = [self.repeated(self.asarray(a, taken).content, shape) for a in args]
        if name in _ORDERS:
            return HloArray(self, self.compared(_ORDERS[name], *given))
        hlo = _CHLO.get(name) or _ALSO.get(name) or NAMES[name]
        return HloArray(self, self.emit(hlo.replace("logical", "arithmetic") if made.kind == "i" else hlo, given,
                                               (made, shape)))  # fmt: skip

    def complex_of(self, real: Any, imag: Any) -> Content:
        parts = [self.asarray(each) for each in (real, imag)]
        shape = np.broadcast_shapes(*(each.shape for each in parts))
        given = [self.repeated(each.content, shape) for each in parts]
        return self.emit("complex", given, (f"c{given[0].dtype.itemsize * 2}", shape))

    def where(self, condition: Any, x: Any, y: Any) -> HloArray:
        dtype, shape = self.result_type(x, y), np.broadcast_shapes(*map(np.shape, (condition, x, y)))
        pairs = zip((condition, x, y), (bool, dtype, dtype), strict=True)
        given = [self.repeated(self.asarray(each, to).content, shape) for each, to in pairs]
        return HloArray(self, self.emit("select", given, (dtype, shape)))

    def clip(self, x: Any, a_min: Any = None, a_max: Any = None, out: Any = None) -> HloArray:
        found = x if a_min is None else self.maximum(x, a_min)
        return self.placed(found if a_max is None else self.minimum(found, a_max), out)

    # New arrays, and moved elements

    def zeros(self, shape: Any, dtype: Any = float, number: Any = 0) -> HloArray:
        sizes = map(int, shape) if isinstance(shape, Sequence) else (int(shape),)
        return HloArray(self, self.uniform(number, dtype, tuple(sizes)))

    empty, ascontiguousarray = zeros, asarray

    def concatenate(self, arrays: Any, axis: int = 0) -> HloArray:
        parts = [self.asarray(each) for each in arrays]
        dtype = np.result_type(*(each.dtype for each in parts))
        return HloArray(self, self.joined([each.astype(dtype).content for each in parts], axis % parts[0].ndim))

    def roll(self, x: HloArray, shift: Any, axis: Any = None) -> HloArray:
        if axis is None:
            return self.roll(x.ravel(), shift, 0).reshape(x.shape)
        for by, d in zip(*([each] if isinstance(each, int) else each for each in (shift, axis)), strict=True):
            x = self.take(x, np.roll(np.arange(x.shape[d]), by), d)
        return x

    def repeat(self, x: HloArray, count: Any, axis: Any = None) -> HloArray:
        x, axis = (x.ravel(), 0) if axis is None else (x, axis)
        return self.take(x, np.repeat(np.arange(x.shape[axis]), np.asarray(count)), axis)

    def tile(self, x: HloArray, times: Any) -> HloArray:
        counts = (times,) if isinstance(times, int) else tuple(times)
        shape = (1,) * (len(counts) - x.ndim) + x.shape
        pairs = list(zip((1,) * (len(shape) - len(counts)) + counts, shape, strict=True))
        wide = self.broadcast_to(x.reshape([m for n in shape for m in (1, n)]), [m for pair in pairs for m in pair])
        return wide.reshape([c * n for c, n in pairs])

    def pad(self, x: HloArray, width: Any, mode: Any = "constant", constant_values: Any = 0) -> HloArray:
        if mode != "constant":
            return self.take(x.ravel(), np.pad(np.arange(x.size).reshape(x.shape), width, mode=mode))
        low, high = np.broadcast_to(np.asarray(width), (x.ndim, 2)).T.tolist()
        return x.made(self.padded(x.content, low, high, constant_values))

    # Reductions

    def _reduced(self, name: str, x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False,
                 initial: Any = None, ddof: int = 0) -> HloArray:  # fmt: skip
        x = self.asarray(x)
        axes = sorted({int(d) % x.ndim for d in (range(x.ndim) if axis is None else np.atleast_1d(axis))})
        combine, start = _REDUCED[name]
        if name in ("mean", "var", "std"):
            x = x.astype(_dtype("sqrt", (x.dtype,))) if x.dtype.kind in "biu" else x
            count = math.prod(x.shape[d] for d in axes)
            if name != "mean":
                away = x - self.mean(x, tuple(axes), keepdims=True)
                x, count = (away * away.conj()).real, count - ddof
        elif name in ("sum", "prod"):
            x = x.astype(dtype or (out.dtype if out is not None else _dtype("cumsum", (x.dtype,))))
        elif combine in ("and", "or"):
            x = x.astype(bool)
        start = _end(x.dtype, start) if combine in ("maximum", "minimum") else start
        shape, region = [n for d, n in enumerate(x.shape) if d not in axes], self.combining(combine, x.dtype)
        found = x.made(self.emit("reduce", (x, self.uniform(start, x.dtype, ())), (x.dtype, shape), regions=[region],
                                 dimensions=axes)) if axes else x.copy()  # fmt: skip
        found = found.reshape([1 if d in axes else n for d, n in enumerate(x.shape)]) if keepdims else found
        found = found / count if name in ("mean", "var", "std") else found
        found = found if initial is None else getattr(self, combine)(found, initial)
        return self.placed(self.sqrt(found) if name == "std" else found, out)

    def argmax(self, x: HloArray, axis: Any = None, keepdims: bool = False, best: str = "max") -> HloArray:
        x, axis = (x.ravel(), 0) if axis is None else (x, axis % x.ndim)
        met = (x == getattr(self, best)(x, axis, keepdims=True)) | (x != x)
        return self.min(self.where(met, self._rows(x, axis), x.shape[axis]), axis, keepdims=keepdims)

    def cumsum(self, x: HloArray, axis: Any = None, dtype: Any = None, out: Any = None, of: str = "add") -> HloArray:
        x = (x.ravel() if axis is None else x).astype(dtype or _dtype("cumsum", (x.dtype,)))
        return self.placed(getattr(self, of).accumulate(x, axis or 0), out)

    # Indices and orders

    def _rows(self, x: HloArray, axis: int) -> np.ndarray:
        return np.arange(x.shape[axis]).reshape([-1 if d == axis else 1 for d in range(x.ndim)])

    def take(self, x: Any, indices: Any, axis: Any = None, mode: str = "raise") -> HloArray:
        x = self.asarray(x) if axis is not None else self.asarray(x).ravel()
        indices = self.clip(indices, 0, x.shape[axis or 0] - 1) if mode == "clip" else indices
        return x[(*[slice(None)] * ((axis or 0) % x.ndim), self.asarray(indices))]

    def along(self, indices: HloArray, axis: int) -> tuple[Any, ...]:
        """Return the key of elements at indices along a dimension, each in its row."""
        return tuple(indices if d == axis % indices.ndim else self._rows(indices, d) for d in range(indices.ndim))

    def argsort(self, x: HloArray, axis: int = -1, kind: str = "", which: int = 1) -> HloArray:
        """Return the order of elements, stable, with NaN last; which: 0 for the elements in it."""
        operands = [x, self.asarray(self._rows(x, axis % x.ndim) + np.zeros(x.shape, np.int64))]
        with self.region(*((y.dtype, ()) for y in operands for _ in range(2))) as (lines, (a, b, *_)):
            less, last = self.compared("LT", a, b), [self.compared("EQ", a, a), self.compared("NE", b, b)]
            last = self.emit("or", (less, self.emit("and", last, (bool, ()))), (bool, ()))
            self.emit("return", [last])
        return x.made(self.emit("sort", operands, *((y.dtype, y.shape) for y in operands), regions=[lines],
                                dimension=axis % x.ndim, is_stable=True)[which])  # fmt: skip

    def nonzero(self, x: HloArray) -> tuple[HloArray, ...]:
        mask = (x != 0).ravel()
        return tuple(HloArray(self, place, mask=mask) for place in np.indices(x.shape).reshape(x.ndim, -1))

    # Products

    def matmul(self, a: Any, b: Any, out: Any = None) -> HloArray:
        a, b = (self.asarray(x, self.result_type(a, b)) for x in (a, b))
        if min(a.ndim, b.ndim) == 1:
            wide = self.matmul(a.reshape(1, -1) if a.ndim == 1 else a, b.reshape(-1, 1) if b.ndim == 1 else b)
            return wide.squeeze(tuple([-2] * (a.ndim == 1) + [-1] * (b.ndim == 1)))
        batch, lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), range(0)
        if b.ndim > 2 or len(batch) > a.ndim - 2:  # else a matrix for all of the batch
            a, b = (self.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
            lead = range(len(batch))
        return self.placed(a.made(self.product(a.content, b.content, lead, (a.ndim - 1, b.ndim - 2))), out)

    dot = matmul

_REDUCED: Mapping[str, tuple[str, Any]] = {
    "sum": ("add", 0), "prod": ("multiply", 1), "max": ("maximum", 0), "min": ("minimum", 1), "any": ("or", False),
    "all": ("and", True), "mean": ("add", 0), "var": ("add", 0), "std": ("add", 0), "amax": ("maximum", 0),
    "amin": ("minimum", 1),
}  # fmt: skip
"""Operations of reductions, and the numbers that change nothing; of maximum and minimum the end of the type."""
