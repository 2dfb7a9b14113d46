"""Functions made from operators for arithmetic, matrices and statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import BOOL, FLOAT32, FLOAT64, HALVES, INT32, INT64
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function.array_func import as_dtype, require_tensors
from mspc.mindspore_api.ops.function_arguments import (
    axis_of,
    contracted,
    element_type,
    keeps,
    least,
    neighbours,
    no_such,
    of_rank,
    part_of,
    positive,
    real_type,
    reduced_axes,
    refuse_check,
    rounding,
    size_over,
    summed_type,
    times,
    unbounded,
)
from mspc.mindspore_api.ops.index_arguments import chosen_places, crossed, shares, vector_of


def div(input: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    """Return the quotient; rounded towards 0 for rounding_mode "trunc", down for "floor"."""
    rounding("div", rounding_mode)
    if rounding_mode == "floor":
        return ops.FloorDiv()(input, other)
    if rounding_mode == "trunc":
        return ops.TruncateDiv()(input, other)
    return ops.Div()(input, other)


def round(input: Any, *, decimals: int = 0) -> Any:
    """Round to `decimals` decimals, to tens and hundreds if it is negative, halves to even; integers are unchanged."""
    if not (input.dtype.is_float or input.dtype.is_complex):
        return input
    if decimals == 0:
        return ops.Round()(input)
    scale = 10.0 ** abs(decimals)
    return ops.Round()(input * scale) / scale if decimals > 0 else ops.Round()(input / scale) * scale


def matmul(input: TensorLike, other: TensorLike) -> Any:
    """Return the matrix product; leading dimensions are a batch, a vector is a row on the left and a column on the
    right."""
    if len(input.shape) == 2 and len(other.shape) == 2:
        return ops.MatMul()(input, other)
    if len(input.shape) > 1 and len(other.shape) > 1:
        return ops.BatchMatMul()(input, other)
    return input @ other


def cumsum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Return running sums along `axis` of the elements as `dtype`; None: of the flat tensor."""
    if dtype is not None:
        return cumsum(ops.cast(x, dtype), axis)
    return ops.CumSum()(ops.Reshape()(x, (-1,)), 0) if axis is None else ops.CumSum()(x, axis)


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithm of the sum of exponentials along `dim`, () for all, without overflow."""
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
    """Return running products along `dim` of the elements as `dtype`; by default integers and Bool become Int64."""
    if dtype is None and not (input.dtype.is_float or input.dtype.is_complex):
        dtype = INT64
    return ops.CumProd()(input if dtype is None else ops.cast(input, element_type(dtype)), dim)


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum along `dim`, None for all, of the elements as `dtype`; integers and Bool add up to Int64."""
    kind = summed_type(input.dtype, dtype)
    return ops.ReduceSum(keepdim)(as_dtype(input, kind), () if dim is None else dim)


def mean(x: Any, axis: Any = None, keep_dims: bool = False, **spelled: Any) -> Any:
    """Return the mean along `axis`, None for all; for integers it is truncated."""
    if not (x.dtype.is_float or x.dtype.is_complex):
        return ops.cast(mean(ops.cast(x, FLOAT64), axis, keep_dims, **spelled), x.dtype)
    return ops.ReduceMean(keeps("mean", keep_dims, spelled))(x, reduced_axes("ReduceMean", axis, len(x.shape)))


def prod(input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None, **spelled: Any) -> Any:
    """Return the product along `axis`, None for all, of the elements as `dtype`; for integers and Bool it is Int64."""
    axes = reduced_axes("ReduceProd", axis, len(input.shape))
    return ops.ReduceProd(keeps("prod", keep_dims, spelled))(as_dtype(input, summed_type(input.dtype, dtype)), axes)


def all(input: Any, axis: Any = None, keep_dims: bool = False, **spelled: Any) -> Any:
    """Return whether all elements along `axis` are true, or not 0, None for all axes."""
    if input.dtype != BOOL:
        return all(ops.cast(input, BOOL), axis, keep_dims, **spelled)
    return ops.ReduceAll(keeps("all", keep_dims, spelled))(input, reduced_axes("ReduceAll", axis, len(input.shape)))


def any(input: Any, axis: Any = None, keep_dims: bool = False, **spelled: Any) -> Any:
    """Return whether any element along `axis` is true, or not 0, None for all axes."""
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
    """Return `x` clipped to the range between two values; for a tuple or list of tensors a tuple of them."""
    if isinstance(x, (tuple, list)):
        return tuple([clamp(part, clip_value_min, clip_value_max) for part in x])
    return clamp(x, clip_value_min, clip_value_max)


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Return `input` clipped to the range between two values, of which one may be None; an element equal to a bound
    gets the gradient. Raise ValueError if both are None."""
    if min is None and max is None:
        unbounded("clamp")
    low = input if min is None else ops.Select()(ops.Less()(input, min), min, input)
    return low if max is None else ops.Select()(ops.Greater()(low, max), max, low)


def clip_by_global_norm(x: Sequence[Any], clip_norm: float = 1.0, use_norm: None = None) -> Any:
    """Scale tensors together so that their global norm is at most `clip_norm`; return a tuple. use_norm: must be None,
    because the norm is computed. Raise ValueError if clip_norm is not above 0, or a norm is given."""
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
    """Scale tensors so that the norm of all their elements is at most max_norm; one tensor or a list of them.

    norm_type: the order of the norm, infinity for the greatest absolute value. error_if_nonfinite: must be False,
    because the values of a tensor are unknown when a network is compiled.

    Raises ValueError for error_if_nonfinite.
    """
    tensors = x if isinstance(x, (tuple, list)) else (x,)
    refuse_check("clip_by_norm", error_if_nonfinite)
    if norm_type == float("inf"):
        total = ops.reduce_max(ops.stack([ops.reduce_max(ops.abs(part)) for part in tensors]))
    elif norm_type == 2.0:
        total = ops.sqrt(ops.addn([ops.reduce_sum(ops.square(ops.cast(part, FLOAT32))) for part in tensors]))
    else:
        powers = [ops.reduce_sum(ops.pow(ops.abs(ops.cast(part, FLOAT32)), norm_type)) for part in tensors]
        total = ops.pow(ops.addn(powers), 1.0 / norm_type)
    factor = ops.minimum(max_norm / (total + 1e-6), 1.0)
    clipped = [part * ops.cast(factor, part.dtype) for part in tensors]
    return clipped if isinstance(x, (tuple, list)) else clipped[0]


def tensor_dot(x1: Any, x2: Any, axes: Any) -> Any:
    """Return sums of products over dimensions of x1 and x2: over the last `axes` of x1 and the first of x2, or over
    those in a pair of lists. Raise ValueError if dimensions are missing, or sizes differ."""
    mine, theirs = contracted("tensor_dot", axes, x1.shape, x2.shape)
    left = [d for d in range(len(x1.shape)) if d not in mine]
    right = [d for d in range(len(x2.shape)) if d not in theirs]
    size = size_over(x1.shape, mine)
    rows = ops.reshape(ops.transpose(x1, tuple(left + list(mine))), (-1, size))
    columns = ops.reshape(ops.transpose(x2, tuple(list(theirs) + right)), (size, -1))
    shape = tuple([x1.shape[d] for d in left] + [x2.shape[d] for d in right])
    return ops.reshape(ops.matmul(rows, columns), shape)


# Products -------------------------------------------------------------------------------------------------


def isclose(
    input: TensorLike, other: TensorLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """Return whether |input - other| <= atol + rtol * |other|; NaN is close to NaN with equal_nan."""
    x, y = [ops.cast(v, FLOAT32) if v.dtype in HALVES else v if v.dtype.is_float or v.dtype.is_complex
            else ops.cast(v, FLOAT64) for v in (input, other)]  # fmt: skip
    near = ops.LessEqual()(ops.Abs()(ops.Sub()(x, y)), ops.Abs()(y) * rtol + atol)
    near = ops.LogicalOr()(ops.Equal()(x, y), ops.LogicalAnd()(near, ops.IsFinite()(y)))
    if not equal_nan:
        return near
    return ops.LogicalOr()(near, ops.LogicalAnd()(ops.NotEqual()(x, x), ops.NotEqual()(y, y)))


def cross(input: TensorLike, other: TensorLike, dim: int | None = None) -> Any:
    """Return the cross product of vectors of three along `dim`, by default the first dimension of size three. Raise
    ValueError if there is no dimension of size three, or `dim` is none."""
    input, other = ops.broadcast_to(input, (input * other).shape), ops.broadcast_to(other, (input * other).shape)
    axis, second, third = crossed("cross", dim, input.shape)
    left = ops.Gather()(input, second, axis) * ops.Gather()(other, third, axis)
    return left - ops.Gather()(input, third, axis) * ops.Gather()(other, second, axis)


# Factors --------------------------------------------------------------------------------------------------


def qr(input: TensorLike, mode: str = "reduced") -> Any:
    """Return (orthogonal matrices Q, upper triangular matrices R) with Q @ R = input; for the mode "complete" Q is
    square. Raise ValueError for another mode."""
    if mode not in ("reduced", "complete", True, False):
        no_such("qr", "mode", mode, "'reduced' or 'complete'")
    return ops.Qr(mode in ("complete", False))(input)


# Of factors -----------------------------------------------------------------------------------------------


def logdet(input: TensorLike) -> Any:
    """Return the logarithm of determinants; NaN for negative ones."""
    sign, size = ops.slogdet(input)
    return ops.Select()(ops.Less()(sign, 0), ops.full_like(size, float("nan")), size)


def matrix_power(input: TensorLike, n: int) -> Any:
    """Return square matrices to the power n; for a negative n the inverses to the power -n."""
    if n < 0:
        return matrix_power(ops.inverse(input), -n)
    if n == 0:
        return ops.broadcast_to(ops.eye(input.shape[-1], None, input.dtype), input.shape)
    if n == 1:
        return input
    half = matrix_power(input, n // 2)
    square = ops.BatchMatMul()(half, half)
    return square if n % 2 == 0 else ops.BatchMatMul()(square, input)


def _float(name: str, x: Any) -> Any:
    dtype = real_type(name, x.dtype)
    return x if x.dtype == dtype else ops.cast(x, dtype)


# Sorted elements ------------------------------------------------------------------------------------------


def msort(input: TensorLike) -> Any:
    """Return the elements sorted along dimension 0."""
    values, _ = ops.Sort(0)(input)
    return values


def _at(x: Any, axis: int, place: int, keepdims: bool) -> Any:
    found = ops.StridedSlice()(x, *part_of(x.shape, (place, 1), axis, 1))
    return found if keepdims else ops.Squeeze(axis)(found)


def median(input: TensorLike, axis: int = -1, keepdims: bool = False) -> Any:
    """Return (the median along `axis`, the smaller of two in the middle, its index, Int64); if there is a NaN, NaN and
    the index of the first one."""
    axis = axis_of("median", axis, len(input.shape))
    values, places = ops.SortExt()(input, axis, False, True)
    middle = (input.shape[axis] - 1) // 2
    found = _at(values, axis, middle, keepdims), _at(places, axis, middle, keepdims)
    if not input.dtype.is_float:
        return found
    numbers = ops.ReduceSum(True)(ops.cast(ops.Equal()(input, input), INT64), axis)
    first = ops.Minimum()(numbers, input.shape[axis] - 1)
    missing = ops.Less()(numbers if keepdims else ops.Squeeze(axis)(numbers), input.shape[axis])
    behind = [ops.GatherD()(x, axis, first) for x in (values, places)]
    behind = behind if keepdims else [ops.Squeeze(axis)(x) for x in behind]
    return ops.Select()(missing, behind[0], found[0]), ops.Select()(missing, behind[1], found[1])


def quantile_along(
    name: str, x: Any, q: Any, axis: Any, keepdims: bool, numbers_only: bool, interpolation: str = "linear"
) -> Any:
    given = q.tolist() if isinstance(q, np.ndarray | np.generic) else q
    parts = given if hasattr(given, "shape") else shares(name, given)
    rank = len(x.shape)
    place = axis_of(name, 0 if axis is None else axis, max(1, rank))
    x = ops.Reshape()(x, (-1,)) if axis is None or rank == 0 else ops.movedim(x, place, -1)
    values, _ = ops.SortExt()(x, -1, False, False)
    numbers = ops.ReduceSum(True)(ops.cast(ops.Equal()(x, x), x.dtype), -1)
    top = ops.Maximum()(numbers - 1, 0) if numbers_only else ops.full_like(numbers, x.shape[-1] - 1)
    wanted = top * ops.Reshape()(ops.cast(parts, x.dtype), (-1,))
    low, high = ops.Floor()(wanted), ops.Ceil()(wanted)
    if interpolation in ("linear", "midpoint"):
        below, above = [ops.GatherD()(values, -1, ops.cast(each, INT64)) for each in (low, high)]
        weight = wanted - low if interpolation == "linear" else ops.full_like(wanted, 0.5)
        found = ops.Lerp()(below, above, weight)
    else:
        one = low if interpolation == "lower" else high if interpolation == "higher" else ops.Round()(wanted)
        found = ops.GatherD()(values, -1, ops.cast(one, INT64))
    if not numbers_only:
        found = ops.Select()(ops.Less()(numbers, x.shape[-1]), ops.full_like(found, float("nan")), found)
    found = ops.movedim(found, -1, 0)
    if keepdims:
        found = ops.Reshape()(found, (-1, *[1] * rank)) if axis is None else ops.ExpandDims()(found, 1 + place)
    return found if parts.shape else ops.Squeeze(0)(found)


# Counts ---------------------------------------------------------------------------------------------------


def histc(input: TensorLike, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Any:
    """Return the number of elements in each of `bins` equal parts of min to max, or of the range of the elements if
    both are 0. The last part includes its end; values outside are not counted. Raise ValueError if bins is below 1, or
    min is above max."""
    least("histc", "bins", bins, 1)
    if min > max:
        no_such("histc", "min", min, f"a number up to max, which is {max}")
    x = ops.Reshape()(_float("histc", input), (-1,))
    low, high = min, max
    if min == max == 0:
        low, high = ops.ReduceMin()(x), ops.ReduceMax()(x)
    if min == max:
        flat = ops.Equal()(high, low) if hasattr(high, "shape") else ops.full((), True, dtype=BOOL)
        low, high = ops.Select()(flat, low - 1.0, low), ops.Select()(flat, high + 1.0, high)
    place = ops.Floor()((x - low) / (high - low) * bins)
    place = ops.Select()(ops.Equal()(x, high), bins - 1, place)
    outside = ops.LogicalOr()(ops.Less()(place, 0), ops.GreaterEqual()(place, bins))
    places = ops.cast(ops.Select()(outside, -1, place), INT32)
    return ops.cast(ops.UnsortedSegmentSum()(ops.ones_like(x), places, bins), input.dtype)


def searchsorted(
    sorted_sequence: TensorLike, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    """Return the number of elements of a sorted sequence, the last dimension, that are below each value; for right or
    side "right", below or equal.

    values: of the sequence's shape except for the last dimension; for a single sequence any shape, or a number. sorter:
    the indices that sort an unsorted sequence. Int64, or Int32 with out_int32.

    Raises ValueError for another side, or values of another shape.
    """
    if side not in (None, "left", "right") or (right and side == "left"):
        no_such("searchsorted", "side", side, "'left', or with right=True 'right'")
    found = sorted_sequence if sorter is None else ops.GatherD()(sorted_sequence, -1, sorter)
    wanted = values if hasattr(values, "shape") else ops.full((), values)
    if len(found.shape) > 1 and wanted.shape[:-1] != found.shape[:-1]:
        no_such("searchsorted", "the shape of values", wanted.shape, f"that of sorted_sequence, {found.shape}, but the "
                "last dimension")  # fmt: skip
    line = ops.ExpandDims()(found, -2) if len(found.shape) > 1 else found
    wanted = ops.ExpandDims()(wanted, -1)
    if right or side == "right":
        before = ops.LessEqual()(line, wanted)
    else:
        before = ops.Less()(line, wanted)
    if wanted.dtype.is_float:  # NaN is sorted after all numbers
        before = ops.LogicalOr()(before, ops.NotEqual()(wanted, wanted))
    counted = ops.cast(before, INT32 if out_int32 else INT64)
    return ops.ReduceSum()(counted, -1)


def bucketize(input: TensorLike, boundaries: Any, *, right: bool = False) -> Any:
    """Return the index of each element's part between sorted boundaries, a list of numbers, Int32: the number of
    boundaries below it, or for right below or equal."""
    line = vector_of("bucketize", "boundaries", boundaries)
    return ops.cast(searchsorted(ops.cast(line, real_type("bucketize", input.dtype)), input, right=right), INT32)


# Covariances and distances --------------------------------------------------------------------------------


def pdist(input: TensorLike, p: float = 2.0) -> Any:
    """Return the p-norms of the differences of every two rows, in the order of the first and then of the second."""
    pairs = chosen_places("pdist", input.shape[-2], 2, False)
    return ops.vector_norm(ops.Gather()(input, pairs[:, 0], -2) - ops.Gather()(input, pairs[:, 1], -2), p, -1)


def cosine_similarity(x1: TensorLike, x2: TensorLike, dim: int = 1, eps: float = 1e-08) -> Any:
    """Return the cosine of the angle between vectors along `dim`; their norms are at least eps."""
    product = ops.Mul()(x1, x2)
    if product.dtype in HALVES:
        wide = [ops.cast(x, FLOAT32) for x in (x1, x2)]
        return ops.cast(cosine_similarity(wide[0], wide[1], dim, eps), product.dtype)
    shape = product.shape
    x1, x2 = [ops.broadcast_to(_float("cosine_similarity", x), shape) for x in (x1, x2)]
    dim = axis_of("cosine_similarity", dim, len(shape))
    size = ops.Maximum()(ops.vector_norm(x1, 2, dim, True), eps) * ops.Maximum()(ops.vector_norm(x2, 2, dim, True), eps)
    return ops.ReduceSum()(ops.Mul()(x1, x2) / size, dim)


def renorm(input: TensorLike, p: float, axis: int, maxnorm: float) -> Any:
    """Scale slices along `axis` so that the p-norm of each is at most maxnorm."""
    if input.dtype in HALVES:
        return ops.cast(renorm(ops.cast(input, FLOAT32), p, axis, maxnorm), input.dtype)
    axis = axis_of("renorm", axis, len(input.shape))
    size = ops.vector_norm(input, p, tuple([d for d in range(len(input.shape)) if d != axis]), True)
    return ops.Select()(ops.Greater()(size, maxnorm), input * (maxnorm / (size + 1e-7)), input)


def signbit(input: TensorLike) -> Any:
    """Return whether the input is below 0, or is -0."""
    below = ops.Less()(input, 0)
    return ops.LogicalOr()(below, ops.Less()(ops.Reciprocal()(input), 0)) if input.dtype.is_float else below


def sgn(input: TensorLike) -> Any:
    """Return the sign: -1, 0 or 1; for complex numbers the number of length 1 in their direction."""
    if not input.dtype.is_complex:
        return ops.Sign()(input)
    length = ops.Abs()(input)
    zero = ops.Equal()(length, 0)
    return input / ops.cast(ops.Select()(zero, ops.ones_like(length), length), input.dtype)


def copysign(x: TensorLike, other: Any) -> Any:
    """Return |x| with the sign of the other, a tensor or a number; integers as Float32."""
    size = ops.Abs()(_float("copysign", x))
    if isinstance(other, int | float):
        return -size if math.copysign(1.0, other) < 0 else size
    return ops.Select()(signbit(other), -size, size)


def heaviside(input: TensorLike, values: TensorLike) -> Any:
    """0 below 0, 1 above, `values` at 0."""
    above = ops.cast(ops.Greater()(input, 0), input.dtype)
    return ops.Select()(ops.Equal()(input, 0), values, above)


def extremum(kind: Any, x: Any, y: Any) -> Any:
    found = kind(x, y)
    if not found.dtype.is_float:
        return found
    x, y = ops.cast(x, found.dtype), ops.cast(y, found.dtype)
    return ops.Select()(ops.IsNan()(x), y, ops.Select()(ops.IsNan()(y), x, found))


def logit(input: TensorLike, eps: float | None = None) -> Any:
    """Return the logarithm of x / (1 - x), with x clipped to [eps, 1 - eps] if eps is given; integers as Float32."""
    x = _float("logit", input)
    x = x if eps is None else ops.clamp(x, eps, 1 - eps)
    return ops.Log()(x / (1 - x))


def polygamma(n: int, input: TensorLike) -> Any:
    """Return the n-th derivative of the digamma function, for inputs above 0; n is known when a network is compiled.
    Raise ValueError if n is below 0."""
    order = least("polygamma", "n", n, 0)
    x = _float("polygamma", input)
    if order == 0:
        return ops.Digamma()(x)
    return ops.Zeta()(ops.full_like(x, order + 1.0), x) * float((-1) ** (order + 1) * math.factorial(order))


def logcumsumexp(input: TensorLike, axis: int) -> Any:
    """Return the logarithm of running sums of exponentials along `axis`, without overflow."""
    axis = axis_of("logcumsumexp", axis, len(input.shape))
    return input if input.shape[axis] < 2 else ops.CumulativeLogsumexp()(input, axis)


def as_floating(x: Any) -> Any:
    return x if x.dtype.is_float or x.dtype.is_complex else ops.cast(x, FLOAT32)


def log_of_sum(x: Any, y: Any, one: float, power: Any, logarithm: Any) -> Any:
    x, y = as_floating(x), as_floating(y)
    equal = ops.Equal()(x, y)
    apart = ops.Select()(equal, ops.zeros_like(x + y), ops.Sub()(x, y))  # infinite ones have no difference
    larger = ops.Maximum()(x, y)
    return ops.Select()(equal, (x + y) * 0.5 + one, larger + logarithm(power(-ops.Abs()(apart)) + 1))


def logaddexp(input: TensorLike, other: TensorLike) -> Any:
    """Return the logarithm of the sum of both exponentials, without overflow."""
    return log_of_sum(input, other, math.log(2), ops.Exp(), lambda x: ops.Log1p()(x - 1))


def float_power(input: Any, exponent: Any) -> Any:
    """Return a power in Float64, of a tensor and a tensor or a number."""
    if isinstance(input, int | float):
        return ops.Pow()(input, ops.cast(exponent, FLOAT64))
    if not isinstance(exponent, int | float):
        exponent = ops.cast(exponent, FLOAT64)
    return ops.Pow()(ops.cast(input, FLOAT64), exponent)


def sinc(input: TensorLike) -> Any:
    """sin(pi x) / (pi x), 1 at 0."""
    x = as_floating(input)
    zero = ops.Equal()(x, 0)
    angle = ops.Select()(zero, ops.ones_like(x), x) * math.pi
    return ops.Select()(zero, ops.ones_like(x), ops.Sin()(angle) / angle)


def nansum(input: TensorLike, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """Return the sum along `axis`, None for all, of the elements that are not NaN."""
    x = ops.Select()(ops.IsNan()(input), ops.zeros_like(input), input) if input.dtype.is_float else input
    return ops.sum(x, axis, keepdims, dtype=dtype)


def nanmean(input: TensorLike, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """Return the mean along `axis`, None for all, of the elements that are not NaN; NaN if there are none."""
    x = as_floating(input) if dtype is None else ops.cast(input, dtype)
    numbers = ops.cast(ops.Equal()(x, x), x.dtype)
    return nansum(x, axis, keepdims) / ops.sum(numbers, axis, keepdims)


def dot(input: Any = None, other: Any = None, *, x1: Any = None, x2: Any = None) -> Any:
    """Return products summed along the last dimension of the input and the last but one of the other, its only one if
    it is a vector; a number multiplies. x1, x2: the older names of both."""
    input, other = (input if x1 is None else x1), (other if x2 is None else x2)
    if input is None or other is None:
        raise ApiTypeError("ops.dot(): takes two tensors, input and other", code="E0301")
    if not input.shape or not other.shape:
        return ops.Mul()(input, other)
    return ops.tensor_dot(input, other, ((len(input.shape) - 1,), (max(0, len(other.shape) - 2),)))


def inner(input: TensorLike, other: TensorLike) -> Any:
    """Return products summed along the last dimension of both; a number multiplies."""
    if not input.shape or not other.shape:
        return ops.Mul()(input, other)
    return ops.tensor_dot(input, other, ((len(input.shape) - 1,), (len(other.shape) - 1,)))


def trace(input: TensorLike) -> Any:
    """Return the sum of a matrix's diagonal."""
    of_rank("ops.trace", "input", input.shape, 2)
    is_on_it = ops.Equal()(ops.eye(*input.shape, FLOAT32), 1)
    return ops.ReduceSum()(ops.where(is_on_it, input, ops.zeros_like(input)))  # no multiplication: 0 times NaN is NaN


def diff(x: TensorLike, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return differences of neighbours along `axis`, n times, with `prepend` before and `append` after."""
    if prepend is not None:
        x = ops.concat((prepend, x), axis)
    if append is not None:
        x = ops.concat((x, append), axis)
    for _ in range(times("ops.diff", n, x.shape, axis)):
        first, second, size = neighbours(x.shape, axis)
        x = ops.Slice()(x, second, size) - ops.Slice()(x, first, size)
    return x


def vstack(inputs: Sequence[Any]) -> Any:
    """Concatenate tensors along dimension 0, vectors as rows."""
    require_tensors("ops.vstack", inputs)
    return ops.concat([ops.ExpandDims()(x, 0) if len(x.shape) == 1 else x for x in inputs], 0)


def column_stack(tensors: Sequence[Any]) -> Any:
    """Concatenate tensors along dimension 1, vectors as columns."""
    require_tensors("ops.column_stack", tensors)
    return ops.concat([ops.ExpandDims()(x, 1) if len(x.shape) == 1 else x for x in tensors], 1)
