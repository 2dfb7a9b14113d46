"""Functions of `mint` that choose elements, put them at places, sort and count them. They are compiled as those of
`mint.functions`."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.mint.nn import functional
from mspc.api.ops.arguments import axis_of, least, within
from mspc.api.ops.checked import TensorLike
from mspc.ir.types import INT64


def narrow(input: Any, dim: int, start: int, length: int) -> Any:
    """`length` elements from `start` along `dim`, counted from the end where it is negative.

    Raises:
        ValueError: there is no such dimension, or there are not so many elements.
    """
    rank = len(input.shape)
    dim = axis_of("narrow", dim, rank)
    start = start + input.shape[dim] if start < 0 else start
    begin = tuple([start if d == dim else 0 for d in range(rank)])
    sizes = tuple([length if d == dim else input.shape[d] for d in range(rank)])
    within("narrow", input.shape, begin, sizes)
    return ops.StridedSlice()(input, begin, tuple([b + n for b, n in zip(begin, sizes, strict=True)]), (1,) * rank)


def index_select(input: Any, dim: int, index: Any) -> Any:
    """Slices of `input` along `dim`."""
    return ops.Gather()(input, index, dim)


def gather(input: Any, dim: int, index: Any) -> Any:
    """Element by element the value of `input` at `index` along `dim`; along others `index` may be smaller."""
    return ops.gather_elements(input, axis_of("gather", dim, len(input.shape)), index)


def select(input: TensorLike, dim: int, index: int) -> Any:
    """The slice `index` along `dim`, counted from the end where it is negative."""
    return ops.Squeeze(dim)(narrow(input, dim, index, 1))


def scatter(input: TensorLike, dim: int, index: TensorLike, src: Any) -> Any:
    """The input with every element of `src`, a tensor or a number, at the place that `index` names along `dim`."""
    return ops.scatter(input, dim, index, src)


def scatter_add(input: TensorLike, dim: int, index: TensorLike, src: TensorLike) -> Any:
    """The input with every element of `src` added at the place that `index` names along `dim`."""
    return ops.tensor_scatter_elements(input, index, src, dim, "add")


def index_add(input: TensorLike, dim: int, index: TensorLike, source: TensorLike, *, alpha: Any = 1) -> Any:
    """The input plus `alpha` times the slices of the source at the places along `dim` that `index` names."""
    return ops.index_add(input, index, ops.Mul()(source, alpha), dim)


def clone(input: TensorLike) -> Any:
    """The same values."""
    return ops.Identity()(input)


# Sorted and counted ---------------------------------------------------------------------------------------


def cummax(input: TensorLike, dim: int) -> Any:
    """(the greatest element so far along `dim`, its place)."""
    return ops.Cummax(dim)(input)


def cummin(input: TensorLike, dim: int) -> Any:
    """(the smallest element so far along `dim`, its place)."""
    return ops.Cummin(dim)(input)


def median(input: TensorLike, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of all elements, or (medians, their places) along `dim`; of two in the middle the smaller."""
    if dim is None:
        values, _ = ops.median(ops.Reshape()(input, (-1,)), 0)
        return values
    return ops.median(input, dim, keepdim)


def kthvalue(input: TensorLike, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """(the k-th smallest elements along `dim`, from 1, their places)."""
    least("kthvalue", "k", k, 1)
    values, places = ops.SortExt()(input, dim, False, True)
    found = narrow(values, dim, k - 1, 1), narrow(places, dim, k - 1, 1)
    return found if keepdim else (ops.Squeeze(dim)(found[0]), ops.Squeeze(dim)(found[1]))


def argmin(input: TensorLike, dim: Any = None, keepdim: bool = False) -> Any:
    """The places of the smallest elements along `dim`, or among all elements, Int64."""
    return ops.cast(ops.argmin(input, dim, keepdim), INT64)


def histc(input: TensorLike, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements lie in each of so many equal parts of min to max; see `ops.histc`."""
    return ops.histc(input, bins, min, max)


def bincount(input: TensorLike, weights: Any = None, minlength: int = 0) -> Any:
    """How often each number from 0 to the greatest stands in a vector of integers that is known, Int64, or the sums of
    the weights at its places."""
    found = ops.bincount(input, weights, minlength)
    return ops.cast(found, INT64) if weights is None else found


def searchsorted(
    sorted_sequence: TensorLike, values: Any, *, out_int32: bool = False, right: bool = False, side: Any = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    """How many elements of a sequence in order are below each value; see `ops.searchsorted`."""
    return ops.searchsorted(
        sorted_sequence, values, out_int32=out_int32, right=right, side=side, sorter=sorter
    )


def count_nonzero(input: TensorLike, dim: Any = None) -> Any:
    """How many elements along `dim`, None for all, are not 0, Int64."""
    return ops.count_nonzero(input, () if dim is None else dim, False, INT64)


def nansum(input: TensorLike, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum along `dim`, None for all, of what is a number."""
    return ops.nansum(input, dim, keepdim, dtype=dtype)


def allclose(
    input: TensorLike, other: TensorLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """Whether all elements are close to those of the other; see `ops.isclose`. In a network a tensor of one element."""
    return ops.ReduceAll()(ops.IsClose(rtol, atol, equal_nan)(input, other))


def diff(input: TensorLike, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along `dim`, n times, after what is put before and behind."""
    return ops.diff(input, n, dim, prepend, append)


# Products and matrices ------------------------------------------------------------------------------------


def mm(input: TensorLike, mat2: TensorLike) -> Any:
    """The product of two matrices."""
    return ops.MatMul()(input, mat2)


def vdot(input: TensorLike, other: TensorLike) -> Any:
    """Products of two vectors summed."""
    return ops.ReduceSum()(ops.Mul()(ops.Conj()(input) if input.dtype.is_complex else input, other))


def cross(input: TensorLike, other: TensorLike, dim: Any = None) -> Any:
    """The cross product of vectors of three along `dim`, the first dimension of three unless given."""
    return ops.cross(input, other, dim)


def cdist(x1: TensorLike, x2: TensorLike, p: float = 2.0, compute_mode: Any = None) -> Any:
    """The p-norms of the differences of every two rows. compute_mode: they are computed in one way, whatever it
    says."""
    return ops.Cdist(float(p))(x1, x2)


def triangular_solve(
    b: TensorLike, A: TensorLike, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """(x of A @ x = b for triangular matrices A, or of their transpose, A)."""
    return ops.SolveTriangular()(A, b, int(transpose), not upper, unitriangular), A


def conv2d(
    input: TensorLike, weight: TensorLike, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Images [n, c, h, w] convolved with weights [out, c / groups, h, w]; see `mint.nn.functional.conv2d`."""
    return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)
