"""The arguments of these functions of `mint` differ from those of `ops`. They are parsed when a compiled function calls
them, so they keep to the part of Python that mspc compiles; called by a script they run at once."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.function_arguments import require_float


def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """input + alpha * other."""
    if alpha == 1:
        return ops.Add()(input, other)
    return ops.Add()(input, ops.Mul()(other, alpha))


def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """input - alpha * other."""
    if alpha == 1:
        return ops.Sub()(input, other)
    return ops.Sub()(input, ops.Mul()(other, alpha))


# Shapes -----------------------------------------------------------------------------------------------------


def t(input: Any) -> Any:
    """A matrix transposed; a vector as it is."""
    if len(input.shape) < 2:
        return input
    return ops.Transpose()(input, (1, 0))


# Reductions -------------------------------------------------------------------------------------------------


def max(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The maximum, or (maxima, their places) along `dim`."""
    if dim is None:
        return ops.Max()(input)
    return ops.MaxDim()(input, dim, keepdim)


def min(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The minimum, or (minima, their places) along `dim`."""
    if dim is None:
        return ops.Min()(input)
    return ops.MinDim()(input, dim, keepdim)


def var(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """Variance along `dim`, None for all: squared distances from the mean, summed and divided by their number less
    `correction`."""
    require_float("var", input.dtype)
    return ops.var(input, dim, correction, keepdim)


def std(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """Standard deviation along `dim`, None for all; see `var`."""
    require_float("std", input.dtype)
    return ops.std(input, dim, correction, keepdim)


def norm(input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norm along `dim`, None for all, of the elements as `dtype`: Euclid's for "fro" or 2, else the p-th root of
    the sum of p-th powers, or that of singular values for "nuc"."""
    x = as_dtype(input, dtype)
    if p == "fro":
        return ops.vector_norm(x, 2, dim, keepdim)
    if p == "nuc":
        return ops.norm(x, p, tuple(range(len(x.shape))) if dim is None else dim, keepdim)
    return ops.vector_norm(x, p, dim, keepdim)


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """The places that the elements come from when they are in order along `dim`, Int64."""
    _, places = ops.SortExt()(input, dim, descending, stable)
    return places


def as_dtype(input: Any, dtype: Any) -> Any:
    return input if dtype is None else ops.cast(input, dtype)
