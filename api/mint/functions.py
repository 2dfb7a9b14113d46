"""Functions of `mint` whose arguments differ from those of `ops`. They are parsed when a compiled function calls them,
so they keep to the part of Python that mspc compiles; called by a script they run at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import require_float, summed_type
from mspc.api.ops.checked import TensorLike


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


def matmul(input: TensorLike, other: TensorLike) -> Any:
    """Matrix product; more dimensions than two are a batch."""
    return ops.matmul(input, other)


def frac(input: TensorLike) -> Any:
    """What stands behind the point, with the sign of the number."""
    return ops.frac(input)


def mv(input: TensorLike, vec: TensorLike) -> Any:
    """The product of a matrix and a vector."""
    return ops.mv(input, vec)


def ones(size: Any, dtype: Any = None) -> Any:
    """A tensor of ones, Float32 unless `dtype` is given."""
    return ops.ones(size, dtype)


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2)."""
    return add(input if beta == 1 else ops.Mul()(input, beta), ops.MatMul()(mat1, mat2), alpha=alpha)


def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (batch1 @ batch2), batch by batch."""
    return add(input if beta == 1 else ops.Mul()(input, beta), ops.BatchMatMul()(batch1, batch2), alpha=alpha)


def outer(input: Any, vec2: Any) -> Any:
    """The outer product of two vectors."""
    return ops.Outer()(input, vec2)


# Shapes -----------------------------------------------------------------------------------------------------


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors one after another along `dim`."""
    return ops.Concat(dim)(tensors)


concat = cat


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors side by side along a new dimension."""
    return ops.Stack(dim)(tensors)


def chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    """At most `chunks` parts of one size along `dim`, a tuple; the last one may be smaller."""
    return ops.chunk(input, chunks, dim)


def split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> Any:
    """Parts along `dim`, a tuple: of one size, the last one of what is left, or of the sizes listed."""
    return ops.split(tensor, split_size_or_sections, dim)


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Dimensions start_dim to end_dim made one."""
    return ops.flatten(input, start_dim=start_dim, end_dim=end_dim)


def squeeze(input: Any, dim: Any = None) -> Any:
    """Without dimensions of size 1: all, or `dim`."""
    return ops.squeeze(input, dim)


def unsqueeze(input: Any, dim: int) -> Any:
    """A new dimension of size 1 at `dim`."""
    return ops.ExpandDims()(input, dim)


def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """Two dimensions exchanged."""
    return ops.swapaxes(input, dim0, dim1)


def t(input: Any) -> Any:
    """A matrix transposed; a vector as it is."""
    if len(input.shape) < 2:
        return input
    return ops.Transpose()(input, (1, 0))


def repeat_interleave(input: Any, repeats: int, dim: Any = None) -> Any:
    """Every slice along `dim` repeated."""
    return ops.repeat_interleave(input, repeats, dim)


# Reductions -------------------------------------------------------------------------------------------------


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum along `dim`, None for all, of the elements as `dtype`; integers and Bool add up to Int64."""
    return ops.sum(input, dim, keepdim, dtype=dtype)


def mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Mean along `dim`, None for all, of the elements as `dtype`; integers need one that is floating point."""
    return ops.MeanExt()(_as(input, dtype), dim, keepdim)


def prod(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Product along `dim`, None for all, of the elements as `dtype`; that of integers and Bool is Int64."""
    return ops.prod(input, dim, keepdim, dtype)


def all(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements along `dim` are true, or not 0, None for all."""
    return ops.all(input, dim, keepdim)


def any(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element along `dim` is true, or not 0, None for all."""
    return ops.any(input, dim, keepdim)


def amax(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """Maximum along `dim`, () for all."""
    return ops.ReduceMax(keepdim)(input, dim)


def amin(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """Minimum along `dim`, () for all."""
    return ops.ReduceMin(keepdim)(input, dim)


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


def cumsum(input: Any, dim: int, dtype: Any = None) -> Any:
    """Running sums along `dim` of the elements as `dtype`; integers and Bool add up to Int64."""
    return ops.CumsumExt()(_as(input, summed_type(input.dtype, dtype)), dim)


def var(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """Variance along `dim`, None for all: squared distances from the mean, summed and divided by their number less
    `correction`."""
    require_float("var", input.dtype)
    return ops.var(input, dim, correction, keepdim)


def std(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """Standard deviation along `dim`, None for all; see `var`."""
    require_float("std", input.dtype)
    return ops.std(input, dim, correction, keepdim)


def var_mean(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """(variance, mean) along `dim`, None for all; see `var`."""
    return var(input, dim, correction=correction, keepdim=keepdim), ops.mean(input, dim, keepdim)


def std_mean(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """(standard deviation, mean) along `dim`, None for all; see `var`."""
    return std(input, dim, correction=correction, keepdim=keepdim), ops.mean(input, dim, keepdim)


def cumprod(input: Any, dim: int, dtype: Any = None) -> Any:
    """Running products along `dim` of the elements as `dtype`; those of integers and Bool are Int64."""
    return ops.CumProd()(_as(input, summed_type(input.dtype, dtype)), dim)


def norm(input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norm along `dim`, None for all, of the elements as `dtype`: Euclid's for "fro" or 2, else the p-th root of
    the sum of p-th powers, or that of singular values for "nuc"."""
    x = _as(input, dtype)
    if p == "fro":
        return ops.vector_norm(x, 2, dim, keepdim)
    if p == "nuc":
        return ops.norm(x, p, tuple(range(len(x.shape))) if dim is None else dim, keepdim)
    return ops.vector_norm(x, p, dim, keepdim)


def diag(input: Any, diagonal: int = 0) -> Any:
    """The matrix with a vector on one of its diagonals, or that diagonal of a matrix."""
    return ops.diagonal(input, diagonal) if len(input.shape) == 2 else ops.diag_embed(input, diagonal)


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None) -> Any:
    """`steps` numbers from start to end, both included."""
    return _as(ops.linspace(start, end, steps), dtype)


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """The places that the elements come from when they stand in order along `dim`, Int64."""
    _, places = ops.SortExt()(input, dim, descending, stable)
    return places


def sort(input: Any, *, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """(sorted elements, their places) along `dim`."""
    return ops.SortExt()(input, dim, descending, stable)


def argmax(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The places of the greatest elements along `dim`, or among all elements, Int64."""
    return ops.argmax(input, dim, keepdim)


def meshgrid(*tensors: Any, indexing: Any = None) -> Any:
    """Every vector spread over the grid of all, a tuple."""
    return ops.meshgrid(*tensors, indexing="ij" if indexing is None else indexing)


def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """(the k largest elements along `dim`, their places)."""
    return ops.TopkExt()(input, k, dim, largest, sorted)


def softmax(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """exp(input) divided by its sum along `dim`."""
    return ops.Softmax(dim)(_as(input, dtype))


def _as(input: Any, dtype: Any) -> Any:
    return input if dtype is None else ops.cast(input, dtype)
