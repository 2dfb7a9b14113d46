"""Functions of sorted elements and of counts: medians, quantiles, histograms, places in a sorted sequence, covariances
and distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of, least, no_such, of_rank, part_of, real_type
from mspc.api.ops.index_arguments import chosen_places, shares, vector_of
from mspc.ir.types import BOOL, FLOAT32, HALVES, INT32, INT64


def _float(name: str, x: Any) -> Any:
    dtype = real_type(name, x.dtype)
    return x if x.dtype == dtype else ops.cast(x, dtype)


# Sorted elements ------------------------------------------------------------------------------------------


def msort(input: TensorLike) -> Any:
    """The elements in order along dimension 0."""
    values, _ = ops.Sort(0)(input)
    return values


def _at(x: Any, axis: int, place: int, keepdims: bool) -> Any:
    found = ops.StridedSlice()(x, *part_of(x.shape, (place, 1), axis, 1))
    return found if keepdims else ops.Squeeze(axis)(found)


def median(input: TensorLike, axis: int = -1, keepdims: bool = False) -> Any:
    """(the median along `axis`, the smaller of two in the middle, its place, Int64); NaN, and where the first one
    stands, where there is one."""
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


def nanmedian(input: TensorLike, axis: int = -1, keepdims: bool = False) -> Any:
    """(the median along `axis` of what is a number, the smaller of two in the middle, its place, Int64)."""
    axis = axis_of("nanmedian", axis, len(input.shape))
    values, places = ops.SortExt()(input, axis, False, True)
    count = ops.ReduceSum(True)(ops.cast(ops.Equal()(input, input), INT64), axis)
    middle = ops.Maximum()(ops.FloorDiv()(count - 1, 2), 0)
    found = ops.GatherD()(values, axis, middle), ops.GatherD()(places, axis, middle)
    return found if keepdims else tuple([ops.Squeeze(axis)(x) for x in found])


def quantile_along(name: str, x: Any, q: Any, axis: Any, keepdims: bool, numbers_only: bool) -> Any:
    given = q.tolist() if isinstance(q, np.ndarray | np.generic) else q
    parts = given if hasattr(given, "shape") else shares(name, given)
    rank = len(x.shape)
    if axis is None:
        x, place = ops.Reshape()(x, (-1,)), 0
    else:
        place = axis_of(name, axis, rank)
    last = len(x.shape) - 1
    x = x if place == last else ops.swapaxes(x, place, last)
    values, _ = ops.SortExt()(x, last, False, False)
    numbers = ops.ReduceSum(True)(ops.cast(ops.Equal()(x, x), x.dtype), last)
    top = ops.Maximum()(numbers - 1, 0) if numbers_only else ops.full_like(numbers, x.shape[last] - 1)
    wanted = top * ops.Reshape()(ops.cast(parts, x.dtype), (-1,))
    low = ops.Floor()(wanted)
    below = ops.GatherD()(values, last, ops.cast(low, INT64))
    above = ops.GatherD()(values, last, ops.cast(ops.Ceil()(wanted), INT64))
    found = ops.Lerp()(below, above, wanted - low)
    if not numbers_only:
        found = ops.Select()(ops.Less()(numbers, x.shape[last]), ops.full_like(found, float("nan")), found)
    return _parts_first(found, parts, axis, place, rank, keepdims)


def _parts_first(found: Any, parts: Any, axis: Any, place: int, rank: int, keepdims: bool) -> Any:
    """[..., parts] as [parts, ...], the reduced dimension as 1 where it stays."""
    last = len(found.shape) - 1
    found = ops.Transpose()(found, (last, *range(last)))
    if keepdims:
        found = ops.Reshape()(found, (-1, *[1] * rank)) if axis is None else _with_kept_dim(found, place, rank)
    elif axis is not None and place != rank - 1:
        found = ops.Squeeze(1 + place)(_with_kept_dim(found, place, rank))
    return found if parts.shape else ops.Squeeze(0)(found)


def _with_kept_dim(found: Any, place: int, rank: int) -> Any:
    found = ops.ExpandDims()(found, -1)
    return found if place == rank - 1 else ops.swapaxes(found, 1 + place, rank)


# Counts ---------------------------------------------------------------------------------------------------


def histc(input: TensorLike, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Any:
    """How many elements lie in each of so many equal parts of min to max, or of the least to the greatest element where
    both are 0. The last part holds its end, too; what lies outside is not counted.

    Raises:
        ValueError: bins is below 1, or min is above max.
    """
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
    """How many elements of a sequence in order, the last dimension, are below each value; for right or side "right"
    those are counted that are equal, too.

    values: of the sequence's shape but for the last dimension; of one sequence any, or a number. sorter: the places
    that the elements come from when they are in order, where they do not. Int64, or Int32.

    Raises:
        ValueError: another side, or values of another shape.
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
    if wanted.dtype.is_float:  # NaN stands behind all numbers
        before = ops.LogicalOr()(before, ops.NotEqual()(wanted, wanted))
    counted = ops.cast(before, INT32 if out_int32 else INT64)
    return ops.ReduceSum()(counted, -1)


def bucketize(input: TensorLike, boundaries: Any, *, right: bool = False) -> Any:
    """Which part between boundaries in order, a list of numbers, each element lies in, Int32: how many are below it,
    for right those that are equal, too."""
    line = vector_of("bucketize", "boundaries", boundaries)
    return ops.cast(searchsorted(ops.cast(line, real_type("bucketize", input.dtype)), input, right=right), INT32)


def intopk(x1: TensorLike, x2: TensorLike, k: int) -> Any:
    """Whether the score of the class x2[b] is among the k greatest of the row x1[b]; scores that are equal count as
    one."""
    own = ops.GatherD()(x1, 1, ops.ExpandDims()(ops.cast(x2, INT64), 1))
    greater = ops.ReduceSum()(ops.cast(ops.Greater()(x1, own), INT32), 1)
    return ops.LogicalAnd()(ops.Less()(greater, k), ops.IsFinite()(ops.Squeeze(1)(own)))


# Covariances and distances --------------------------------------------------------------------------------


def cov(input: TensorLike, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariances of variables, the rows of a matrix; a vector is one variable.

    correction: what is subtracted from the number of observations. fweights: how often each is counted. aweights: how
    much each counts.
    """
    if len(input.shape) > 2:
        of_rank("cov", "input", input.shape, 2)
    if input.dtype in HALVES:
        wide = cov(ops.cast(input, FLOAT32), correction=correction, fweights=fweights, aweights=aweights)
        return ops.cast(wide, input.dtype)
    x = _float("cov", ops.atleast_2d(input))
    weights = ops.ones_like(x[0])
    for given in (fweights, aweights):
        weights = weights if given is None else weights * ops.cast(given, x.dtype)
    total = ops.ReduceSum()(weights)
    apart = x - ops.ReduceSum(True)(x * weights, 1) / total
    less = correction
    if aweights is not None:
        less = correction * ops.ReduceSum()(weights * ops.cast(aweights, x.dtype)) / total
    found = ops.MatMul()(apart * weights, ops.Transpose()(apart, (1, 0))) / ops.Maximum()(total - less, 0.0)
    return found if len(input.shape) == 2 else ops.Reshape()(found, ())


def pdist(input: TensorLike, p: float = 2.0) -> Any:
    """The p-norms of the differences of every two rows, in the order of the first and then of the second."""
    pairs = chosen_places("pdist", input.shape[-2], 2, False)
    return ops.vector_norm(ops.Gather()(input, pairs[:, 0], -2) - ops.Gather()(input, pairs[:, 1], -2), p, -1)


def cosine_similarity(x1: TensorLike, x2: TensorLike, dim: int = 1, eps: float = 1e-08) -> Any:
    """The cosine of the angle between vectors along `dim`; their norms are at least eps."""
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
    """Slices along `axis` made shorter so that the p-norm of each is at most maxnorm."""
    if input.dtype in HALVES:
        return ops.cast(renorm(ops.cast(input, FLOAT32), p, axis, maxnorm), input.dtype)
    axis = axis_of("renorm", axis, len(input.shape))
    size = ops.vector_norm(input, p, tuple([d for d in range(len(input.shape)) if d != axis]), True)
    return ops.Select()(ops.Greater()(size, maxnorm), input * (maxnorm / (size + 1e-7)), input)


def trapz(y: TensorLike, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """The area below y along `dim`, of trapezia over steps of dx, or between the places x."""
    axis = axis_of("trapz", dim, len(y.shape))
    if y.dtype in HALVES:
        return ops.cast(trapz(ops.cast(y, FLOAT32), x, dx=dx, dim=dim), y.dtype)
    y, size = _float("trapz", y), y.shape[axis]
    second = ops.StridedSlice()(y, *part_of(y.shape, (1, size - 1), axis, 1))
    both = second + ops.StridedSlice()(y, *part_of(y.shape, (size - 1, 1), axis, 0))
    if x is None:
        return ops.ReduceSum()(both, axis) * (dx / 2)
    x = ops.cast(x, y.dtype)
    if len(x.shape) == 1:
        x = ops.Reshape()(x, tuple([size if d == axis else 1 for d in range(len(y.shape))]))
    return ops.ReduceSum()(both * ops.diff(x, 1, axis), axis) * 0.5
