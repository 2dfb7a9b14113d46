"""These functions are variances and norms."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.function_arguments import element_type, norm_of, power, real_type, reduced_axes, share_of
from mspc.ir.types import FLOAT32, FLOAT64, HALVES


def var(input: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """Variance along `axis`, None for all: squared distances from the mean, summed and divided by their number less
    `ddof`."""
    if not input.dtype.is_float:
        return ops.cast(var(ops.cast(input, FLOAT64), axis, ddof, keepdims), input.dtype)
    if input.dtype in HALVES:
        return ops.cast(var(ops.cast(input, FLOAT32), axis, ddof, keepdims), input.dtype)
    return _variance(input, reduced_axes("var", axis, len(input.shape)), ddof, bool(keepdims))


def _variance(input: Any, axes: Any, ddof: int, keepdims: bool) -> Any:
    _ = ops.Square()(ops.Sub()(input, ops.ReduceMean(True)(input, axes)))
    if not ddof:
        return ops.ReduceMean(keepdims)(_, axes)
    return ops.Mul()(ops.ReduceSum(keepdims)(_, axes), share_of(input.shape, axes, ddof))


def std(input: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """Standard deviation along `axis`, None for all; see `var`."""
    if not input.dtype.is_float:
        return ops.cast(std(ops.cast(input, FLOAT64), axis, ddof, keepdims), input.dtype)
    if input.dtype in HALVES:
        return ops.cast(std(ops.cast(input, FLOAT32), axis, ddof, keepdims), input.dtype)
    return _root(var(input, axis, ddof, keepdims))


def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norm of vectors along `dim`, or of matrices along two: Euclid's or Frobenius' unless `ord` says another.

    ord: None, "fro", "nuc", a number, inf or -inf. dim: None for all dimensions. dtype: computed in this element type.

    Raises:
        ValueError: matrices or vectors have no such norm.
    """
    x = ops.cast(A, element_type(dtype)) if dtype is not None else A
    kind = real_type("norm", x.dtype)
    x = x if x.dtype == kind else ops.cast(x, kind)
    kind, axes = norm_of("norm", ord, dim, len(x.shape))
    if kind == "singular":
        return _of_singular_values(x, ord, axes, keepdim)
    if kind == "lines":
        lines = ops.ReduceSum(True)(ops.Abs()(x), axes[0] if abs(ord) == 1 else axes[1])
        best = ops.ReduceMax(True)(lines, axes) if ord > 0 else ops.ReduceMin(True)(lines, axes)
        return best if keepdim else ops.Squeeze(axes)(best)
    return _of_vectors(x, 2 if kind == "euclid" else ord, axes, keepdim)


def vector_norm(x: Any, ord: Any = 2, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """The `ord`-th root of the sum of `ord`-th powers along `axis`, None for all; see `norm`.

    Raises:
        ValueError: ord is no number.
    """
    x = ops.cast(x, element_type(dtype)) if dtype is not None else x
    power("vector_norm", ord)
    real_type("vector_norm", x.dtype)
    return _of_vectors(x, ord, reduced_axes("vector_norm", axis, len(x.shape)), keepdims)


def _of_vectors(x: Any, ord: Any, axes: Any, keepdim: bool) -> Any:
    if ord == float("inf"):
        return ops.ReduceMax(keepdim)(ops.Abs()(x), axes)
    if ord == -float("inf"):
        return ops.ReduceMin(keepdim)(ops.Abs()(x), axes)
    if ord == 0:
        return ops.ReduceSum(keepdim)(ops.cast(ops.NotEqual()(x, 0), x.dtype), axes)
    if x.dtype in HALVES:
        return ops.cast(_of_vectors(ops.cast(x, FLOAT32), ord, axes, keepdim), x.dtype)
    if ord == 1:
        return ops.ReduceSum(keepdim)(ops.Abs()(x), axes)
    if ord == 2:
        return _root(ops.ReduceSum(keepdim)(ops.Square()(x), axes))
    size = ops.Abs()(x)
    powers = _power(size, ord) if 0 < ord < 1 else ops.Pow()(size, ord)
    return _power(ops.ReduceSum(keepdim)(powers, axes), 1 / ord)


def _root(total: Any) -> Any:
    """The square root, with the gradient 0 at 0."""
    zero = ops.Equal()(total, 0)
    return ops.Select()(zero, 0, ops.Sqrt()(ops.Select()(zero, 1, total)))


def _power(total: Any, exponent: Any) -> Any:
    """The power, with 0 as the value and as the gradient at 0."""
    zero = ops.Equal()(total, 0)
    return ops.Select()(zero, 0, ops.Pow()(ops.Select()(zero, 1, total), exponent))


def _of_singular_values(x: Any, ord: Any, axes: Any, keepdim: bool) -> Any:
    rest = tuple([d for d in range(len(x.shape)) if d not in axes])
    values = ops.SingularValues()(ops.Transpose()(x, (*rest, *axes)))
    found = (
        ops.ReduceSum()(values, -1)
        if ord == "nuc"
        else ops.ReduceMax()(values, -1)
        if ord > 0
        else ops.ReduceMin()(values, -1)
    )
    if not keepdim:
        return found
    return ops.Reshape()(found, tuple([1 if d in axes else x.shape[d] for d in range(len(x.shape))]))
