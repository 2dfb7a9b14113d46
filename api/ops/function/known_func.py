"""Functions whose result has a shape that depends on values: these must be known when a network is compiled. Outside of
a network they always are."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops import known_values
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.method_table import tensor_method


@tensor_method()
def argwhere(input: TensorLike) -> Any:
    """Places of the elements other than 0, one row each, Int64."""
    return ops.nonzero(input)


@tensor_method()
def masked_select(input: TensorLike, mask: TensorLike) -> Any:
    """The elements where the mask, which must be known, is true; a vector."""
    shape, places = known_values.masked_select(mask, input.shape)
    return ops.Gather()(ops.Reshape()(ops.broadcast_to(input, shape), (-1,)), places, 0)


def unique(input: TensorLike) -> Any:
    """(every element once in the order in which they come, where each element stands among them, Int32)."""
    return known_values.unique(input)


@tensor_method()
def unique_with_pad(x: TensorLike, pad_num: float) -> Any:
    """`unique` with as many elements as x has: behind the last there is pad_num."""
    return known_values.unique_with_pad(x, pad_num)


@tensor_method()
def unique_consecutive(
    input: TensorLike, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Every run of equal elements, or of equal slices along `dim`, once; with return_inverse the run of each, with
    return_counts the lengths of the runs: a tuple."""
    return known_values.unique_consecutive(input, return_inverse, return_counts, dim)


@tensor_method()
def bincount(input: TensorLike, weights: Any = None, minlength: int = 0) -> Any:
    """How often each number from 0 to the greatest stands in a vector of integers, at least minlength of them, or the
    sums of the weights at its places; Float32."""
    places, count = known_values.bincount(input, minlength)
    found = ops.ones(input.shape) if weights is None else weights
    return ops.UnsortedSegmentSum()(found, places, count)


def sequence_mask(lengths: TensorLike, maxlen: int | None = None) -> Any:
    """[..., maxlen]: true at the first of so many places as each length says; maxlen: the greatest length, which must
    be known, unless given."""
    size = known_values.sequence_mask(lengths) if maxlen is None else maxlen
    return ops.Less()(ops.arange(size), ops.ExpandDims()(lengths, -1))
