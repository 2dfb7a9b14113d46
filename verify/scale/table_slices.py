"""Sums of rows in a table of which every rank makes its slice: made once where ranks add up the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ops.tensor.embedding import UnsortedSegmentSum
from mspc.verify.scale.kernels import run_on_all
from mspc.verify.scale.spread import wide_axes

Array = Any


def slices_on_each(distinct: Sequence[Any], which: Array, depth: int, backend: Any, arrays: Sequence[Array]) -> Any:
    """Each rank's slice of one table; None where ranks that have other slices have other rows, or it is another
    operator. distinct: the operators that differ. which: of every rank the number of its own among these."""
    first = distinct[0]
    if not isinstance(first, UnsortedSegmentSum) or any(replace(op, offset=first.offset) != first for op in distinct):
        return None
    axes = wide_axes([which], depth)
    if any(array.shape[axis] > 1 for array in arrays for axis in axes):
        return None
    size, begins = first.num_segments, [op.offset for op in distinct]
    begin = min(begins)
    if max(begins) - begin + size > 2 * size * len(distinct):  # they are far apart
        return None
    whole = replace(first, offset=begin, num_segments=max(begins) - begin + size)
    table = run_on_all(whole, backend, depth, arrays)
    ahead = (slice(None),) * depth
    slices = [table[(*ahead, slice(at - begin, at - begin + size))] for at in begins]
    return _along(np.stack(slices), which, depth)


def _along(slices: Array, which: Array, depth: int) -> Array:
    """The slices [number, lead..., own...] in their places along dimensions that are of size 1 in `lead`."""
    lead, own = slices.shape[1 : depth + 1], slices.shape[depth + 1 :]
    pairs = [place for axis in range(depth) for place in (axis, depth + axis)]
    made = slices[which].transpose(*pairs, *range(2 * depth, 2 * depth + len(own)))
    return made.reshape(*(n * m for n, m in zip(which.shape, lead, strict=True)), *own)
