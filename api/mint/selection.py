"""These functions of `mint` choose elements, put them at places, sort and count them. They are compiled as those of
`mint.functions`."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of, least, within
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


# Sorted and counted ---------------------------------------------------------------------------------------


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


def bincount(input: TensorLike, weights: Any = None, minlength: int = 0) -> Any:
    """How often each number from 0 to the greatest stands in a vector of integers that is known, Int64, or the sums of
    the weights at its places."""
    found = ops.bincount(input, weights, minlength)
    return ops.cast(found, INT64) if weights is None else found
