"""Functions whose result has a shape that depends on values: these must be known when a network is compiled. Outside of
a network they always are."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops import known_values
from mspc.api.ops.checked import TensorLike


def masked_select(input: TensorLike, mask: TensorLike) -> Any:
    """The elements where the mask, which must be known, is true; a vector."""
    shape, places = known_values.masked_select(mask, input.shape)
    return ops.Gather()(ops.Reshape()(ops.broadcast_to(input, shape), (-1,)), places, 0)


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
