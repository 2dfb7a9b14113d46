"""Arrays of all ranks of one kind at once: the leading dimensions are those of the kind's mesh, of size 1 where the
ranks along them have equal values, behind them stand those of a rank's own tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Array = Any
Shape = tuple[int, ...]


def common_lead(arrays: Iterable[Array], depth: int) -> Shape:
    """The leading dimensions of what is computed from arrays of which each has `depth` of them."""
    return np.broadcast_shapes((1,) * depth, *(array.shape[:depth] for array in arrays))


def own_shape(array: Array, depth: int) -> Shape:
    """The shape of a rank's own tensor."""
    return array.shape[depth:]


def aligned(arrays: Sequence[Array], depth: int) -> list[Array]:
    """The arrays with as many own dimensions each, new ones of size 1 ahead of the others."""
    rank = max((array.ndim for array in arrays), default=depth) - depth
    return [
        array.reshape(*array.shape[:depth], *(1,) * (rank + depth - array.ndim), *array.shape[depth:])
        for array in arrays
    ]


def widened(array: Array, lead: Shape) -> Array:
    """A view of the array whose leading dimensions are `lead`."""
    return np.broadcast_to(array, (*lead, *array.shape[len(lead) :]))


def parts_of(value: Any) -> tuple[Array, ...]:
    """The tensors of a value, which is one or a tuple of them."""
    return value if isinstance(value, tuple) else (value,)


def mapped(value: Any, change: Callable[[Array], Array]) -> Any:
    """The value with each of its tensors changed."""
    return tuple(mapped(part, change) for part in value) if isinstance(value, tuple | list) else change(value)


def block_by_block(
    run: Callable[..., Any], arrays: Sequence[Array], depth: int, axes: Sequence[int], lead: Shape
) -> Any:
    """What `run` makes of the arrays at every place along some of the leading dimensions, one place after the other,
    put together again. Every array has size 1 along them, or as many as `lead`."""
    if not axes:
        return run(*arrays)
    sizes = [lead[axis] for axis in axes]
    found: list[Any] = []
    for places in itertools.product(*map(range, sizes)):
        own = list(arrays)
        for axis, place in zip(axes, places, strict=True):
            own = [_at(array, axis, place) for array in own]
        found.append(run(*own))
    return _joined(found, sizes, axes)


def _joined(blocks: list[Any], sizes: Sequence[int], axes: Sequence[int]) -> Any:
    if isinstance(blocks[0], tuple):
        return tuple(_joined(list(part), sizes, axes) for part in zip(*blocks, strict=True))
    for axis, size in zip(reversed(axes), reversed(sizes), strict=True):
        blocks = [np.concatenate(blocks[i : i + size], axis) for i in range(0, len(blocks), size)]
    return blocks[0]


def _at(array: Array, axis: int, place: int) -> Array:
    if array.shape[axis] == 1:
        return array
    return array[(slice(None),) * axis + (slice(place, place + 1),)]


def wide_axes(arrays: Iterable[Array], depth: int) -> list[int]:
    """The leading dimensions along which some array has different values."""
    lead = common_lead(arrays, depth)
    return [axis for axis, size in enumerate(lead) if size > 1]


def flat(array: Array, lead: Shape) -> Array:
    """The array with one leading dimension, of all ranks in their order."""
    own = array.shape[len(lead) :]
    return np.ascontiguousarray(widened(array, lead)).reshape(math.prod(lead), *own)


def narrowed(array: Array, depth: int) -> Array:
    """The array with leading dimensions of size 1 where its values along them are equal, bit for bit."""
    for axis in range(depth):
        if array.shape[axis] > 1:
            first = array[(slice(None),) * axis + (slice(0, 1),)]
            if np.array_equal(np.broadcast_to(first, array.shape), array, equal_nan=array.dtype.kind in "fc"):
                array = np.ascontiguousarray(first)
    return array
