"""These functions are arithmetic, products and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import (
    element_type,
    keeps,
    no_such,
    positive,
    real_type,
    reduced_axes,
    rounding,
    summed_type,
    unbounded,
)
from mspc.api.ops.product_arguments import contracted, refuse_check, size_over
from mspc.ir.types import BOOL, FLOAT32, FLOAT64, HALVES, INT64


def div(input: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    """The quotient; rounded towards 0 for rounding_mode "trunc", down for "floor"."""
    rounding("div", rounding_mode)
    if rounding_mode == "floor":
        return ops.FloorDiv()(input, other)
    if rounding_mode == "trunc":
        return ops.TruncateDiv()(input, other)
    return ops.Div()(input, other)


def round(input: Any, *, decimals: int = 0) -> Any:
    """The next numbers of so many decimals, tens and hundreds for those below 0, halves to the even one; integers as
    they are."""
    if not (input.dtype.is_float or input.dtype.is_complex):
        return input
    if decimals == 0:
        return ops.Round()(input)
    scale = 10.0 ** abs(decimals)
    return ops.Round()(input * scale) / scale if decimals > 0 else ops.Round()(input / scale) * scale


def matmul(input: TensorLike, other: TensorLike) -> Any:
    """Matrix product; more dimensions than two are a batch, a vector is a row on the left and a column on the right."""
    if len(input.shape) == 2 and len(other.shape) == 2:
        return ops.MatMul()(input, other)
    if len(input.shape) > 1 and len(other.shape) > 1:
        return ops.BatchMatMul()(input, other)
    return input @ other


def cumsum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Running sums along `axis` of the elements as `dtype`; None: of all elements in their order."""
    if dtype is not None:
        return cumsum(ops.cast(x, dtype), axis)
    return ops.CumSum()(ops.Reshape()(x, (-1,)), 0) if axis is None else ops.CumSum()(x, axis)


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of the sum of exponentials along `dim`, () for all, without overflow."""
    dtype = real_type("logsumexp", input.dtype)
    x = input if input.dtype == dtype else ops.cast(input, dtype)
    axes = reduced_axes("logsumexp", dim, len(x.shape))
    if not x.size:
        return ops.Log()(ops.ReduceSum(keepdim)(ops.Exp()(x), axes))
    most = ops.stop_gradient(ops.ReduceMax(True)(x, axes))
    most = ops.Select()(ops.IsFinite()(most), most, 0)
    total = ops.Log()(ops.ReduceSum(keepdim)(ops.Exp()(ops.Sub()(x, most)), axes))
    return ops.Add()(total, most if keepdim else ops.Squeeze(axes)(most))


def cumprod(input: Any, dim: int, dtype: Any = None) -> Any:
    """Running products along `dim` of the elements as `dtype`, of integers and Bool as Int64 where it is not given."""
    if dtype is None and not (input.dtype.is_float or input.dtype.is_complex):
        dtype = INT64
    return ops.CumProd()(input if dtype is None else ops.cast(input, element_type(dtype)), dim)


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum along `dim`, None for all, of the elements as `dtype`; integers and Bool add up to Int64."""
    kind = summed_type(input.dtype, dtype)
    return ops.ReduceSum(keepdim)(_as(input, kind), () if dim is None else dim)


def _as(input: Any, dtype: Any) -> Any:
    return input if input.dtype == dtype else ops.Cast()(input, dtype)


def mean(x: Any, axis: Any = None, keep_dims: bool = False, **spelled: Any) -> Any:
    """Mean along `axis`, None for all; of integers it is truncated to one."""
    if not (x.dtype.is_float or x.dtype.is_complex):
        return ops.cast(mean(ops.cast(x, FLOAT64), axis, keep_dims, **spelled), x.dtype)
    return ops.ReduceMean(keeps("mean", keep_dims, spelled))(x, reduced_axes("ReduceMean", axis, len(x.shape)))


def prod(input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None, **spelled: Any) -> Any:
    """Product along `axis`, None for all, of the elements as `dtype`; that of integers and Bool is Int64."""
    axes = reduced_axes("ReduceProd", axis, len(input.shape))
    return ops.ReduceProd(keeps("prod", keep_dims, spelled))(_as(input, summed_type(input.dtype, dtype)), axes)


def all(input: Any, axis: Any = None, keep_dims: bool = False, **spelled: Any) -> Any:
    """Whether all elements along `axis` are true, or not 0, None for all axes."""
    if input.dtype != BOOL:
        return all(ops.cast(input, BOOL), axis, keep_dims, **spelled)
    return ops.ReduceAll(keeps("all", keep_dims, spelled))(input, reduced_axes("ReduceAll", axis, len(input.shape)))


def any(input: Any, axis: Any = None, keep_dims: bool = False, **spelled: Any) -> Any:
    """Whether any element along `axis` is true, or not 0, None for all axes."""
    if input.dtype != BOOL:
        return any(ops.cast(input, BOOL), axis, keep_dims, **spelled)
    return ops.ReduceAny(keeps("any", keep_dims, spelled))(input, reduced_axes("ReduceAny", axis, len(input.shape)))


def place_of(extremum: Any, input: Any, dim: Any, keepdim: bool, dtype: Any) -> Any:
    if dim is None:
        return extremum(0, dtype)(ops.Reshape()(input, (-1,)))
    if keepdim:
        return ops.ExpandDims()(extremum(dim, dtype)(input), dim)
    return extremum(dim, dtype)(input)


def clip_by_value(x: TensorLike | Sequence[Any], clip_value_min: Any = None, clip_value_max: Any = None) -> Any:
    """`x` clipped to the range between two values; of a tuple or list of tensors a tuple of them."""
    if isinstance(x, (tuple, list)):
        return tuple([clamp(part, clip_value_min, clip_value_max) for part in x])
    return clamp(x, clip_value_min, clip_value_max)


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """`input` clipped to the range between two values, of which one may be None; where it is one of them the gradient
    is its own.

    Raises:
        ValueError: both are None.
    """
    if min is None and max is None:
        unbounded("clamp")
    low = input if min is None else ops.Select()(ops.Less()(input, min), min, input)
    return low if max is None else ops.Select()(ops.Greater()(low, max), max, low)


def clip_by_global_norm(x: Sequence[Any], clip_norm: float = 1.0, use_norm: None = None) -> Any:
    """Tensors scaled together so that the norm of them all is at most `clip_norm`; a tuple. use_norm: None, as their
    norm is computed.

    Raises:
        ValueError: clip_norm is not above 0, or a norm is given.
    """
    positive("clip_by_global_norm", "clip_norm", clip_norm)
    if use_norm is not None:
        no_such("clip_by_global_norm", "use_norm", use_norm, "None")
    wide = [ops.cast(t, FLOAT32) if t.dtype in HALVES else t for t in x]
    total = ops.AddN()([ops.ReduceSum()(ops.Square()(t)) for t in wide])
    scale = clip_norm / ops.Maximum()(ops.Sqrt()(total), clip_norm)
    return tuple([ops.cast(ops.cast(t, FLOAT32) * scale, t.dtype) if t.dtype in HALVES else t * scale for t in x])


def clip_by_norm(
    x: TensorLike | Sequence[Any], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Any:
    """Tensors made shorter so that the norm of all their elements is at most max_norm; one tensor or a list of them.

    norm_type: the power of the norm, infinity for the greatest absolute value. error_if_nonfinite: only False, what a
    tensor holds is not known when a network is compiled.

    Raises:
        ValueError: error_if_nonfinite.
    """
    tensors = x if isinstance(x, (tuple, list)) else (x,)
    refuse_check("clip_by_norm", error_if_nonfinite)
    if norm_type == float("inf"):
        total = ops.reduce_max(ops.stack([ops.reduce_max(ops.abs(part)) for part in tensors]))
    else:
        powers = [ops.reduce_sum(ops.pow(ops.abs(ops.cast(part, FLOAT32)), norm_type)) for part in tensors]
        total = ops.pow(ops.addn(powers), 1.0 / norm_type)
    factor = ops.minimum(max_norm / (total + 1e-6), 1.0)
    clipped = [part * ops.cast(factor, part.dtype) for part in tensors]
    return clipped if isinstance(x, (tuple, list)) else clipped[0]


def tensor_dot(x1: Any, x2: Any, axes: Any) -> Any:
    """Sums of products over dimensions of x1 and x2: over the last `axes` of x1 and the first of x2, or over those that
    a pair of lists names.

    Raises:
        ValueError: dimensions are missing, or sizes differ.
    """
    mine, theirs = contracted("tensor_dot", axes, x1.shape, x2.shape)
    left = [d for d in range(len(x1.shape)) if d not in mine]
    right = [d for d in range(len(x2.shape)) if d not in theirs]
    size = size_over(x1.shape, mine)
    rows = ops.reshape(ops.transpose(x1, tuple(left + list(mine))), (-1, size))
    columns = ops.reshape(ops.transpose(x2, tuple(list(theirs) + right)), (size, -1))
    shape = tuple([x1.shape[d] for d in left] + [x2.shape[d] for d in right])
    return ops.reshape(ops.matmul(rows, columns), shape)
