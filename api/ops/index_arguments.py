"""Places that functions choose by arguments known at compile time: margins, diagonals, elements moved around a ring.

Unlike the functions, these are called as they are when a network is compiled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.arguments import Shape, axis_of, ints
from mspc.ops.arguments import describe

_MODES = ("constant", "reflect", "replicate", "circular")


def margins(name: str, padding: Any, shape: Shape, mode: Any, value: Any) -> list[tuple[int, int]]:
    """(before, after) of every dimension, from pairs of which the first is that of the last dimension.

    Raises:
        ValueError: an unknown mode, a value for a mode that takes none, no pairs, or more elements are cut off than
            there are, or, in a mode that reads the elements themselves, more wanted than it can give.
    """
    if mode not in _MODES:
        raise ApiValueError(f"{name}(): mode is {describe(mode)}, not {', '.join(map(repr, _MODES))}")
    if mode != "constant" and value is not None:
        raise ApiValueError(f"{name}(): mode {mode!r} takes no value, which is {describe(value)}")
    given = ints(name, "padding", padding.value.reshape(-1).tolist() if isinstance(padding, Tensor) else padding)
    if len(given) % 2 or len(given) > 2 * len(shape):
        raise ApiValueError(f"{name}(): padding {given} must be pairs for at most {len(shape)} dimensions")
    pairs = [(given[i], given[i + 1]) for i in range(0, len(given), 2)]
    found = [(0, 0)] * (len(shape) - len(pairs)) + pairs[::-1]
    for d, (pair, size) in enumerate(zip(found, shape, strict=True)):
        most = {"reflect": size - 1, "circular": size, "replicate": math.inf if size else 0}.get(mode, math.inf)
        if (any(pair) and max(pair) > max(most, 0)) or size + min(pair[0], 0) + min(pair[1], 0) < 0:
            what = f"dimension {d} of size {size} cannot have the margins {pair} in mode {mode!r}"
            raise ApiValueError(f"{name}(): {what}")
    return found


def margin_places(mode: str, size: int, pair: tuple[int, int]) -> Tensor:
    """Where the elements along a dimension of this size come from, margins included."""
    places = np.arange(-pair[0], size + pair[1])
    if mode == "replicate":
        places = places.clip(0, size - 1)
    elif mode == "circular":
        places = places % max(size, 1)
    else:
        places = size - 1 - np.abs(size - 1 - np.abs(places))
    return Tensor.from_array(places)


def inside(shape: Shape, pairs: list[tuple[int, int]]) -> tuple[Shape, Shape, Shape]:
    """(begin, end, strides) of what negative margins leave."""
    begin = tuple(max(0, -before) for before, _ in pairs)
    end = tuple(n + min(0, after) for n, (_, after) in zip(shape, pairs, strict=True))
    return begin, end, (1,) * len(shape)


def outside(pairs: list[tuple[int, int]]) -> tuple[int, ...]:
    """Margins that are added, the pair of the last dimension first."""
    return tuple(max(0, n) for pair in reversed(pairs) for n in pair)


def turns(name: str, shifts: Any, dims: Any, shape: Shape) -> list[tuple[int, int]]:
    """(dimension, places to move on by) of a rotation. Raises ValueError where not every dimension has its shift."""
    steps, axes = ints(name, "shifts", shifts), ints(name, "dims", dims)
    if len(steps) != len(axes):
        raise ApiValueError(f"{name}(): shifts {steps} and dims {axes} must be as many")
    found = [(axis_of(name, axis, len(shape)), step) for axis, step in zip(axes, steps, strict=True)]
    return [(axis, step % shape[axis]) for axis, step in found if shape[axis] and step % shape[axis]]


def diagonal_order(name: str, rank: int, dim1: Any, dim2: Any) -> tuple[int, ...]:
    """The order of dimensions with two of them at the end. Raises ValueError where these are not two."""
    first, second = axis_of(name, dim1, rank), axis_of(name, dim2, rank)
    if first == second:
        raise ApiValueError(f"{name}(): dimensions {dim1} and {dim2} are the same")
    return (*[d for d in range(rank) if d not in (first, second)], first, second)


def places_in(order: Shape) -> Shape:
    """The order of dimensions that undoes this one."""
    return tuple(order.index(d) for d in range(len(order)))


def diagonal_places(rows: int, columns: int, offset: int) -> Tensor:
    """Where a diagonal of a matrix lies among its elements in their order."""
    first = np.arange(max(0, -offset), rows)
    first = first[first + offset < columns]
    return Tensor.from_array((first * columns + first + offset).astype(np.int64))


def nonzero(input: Any, as_tuple: Any) -> Any:
    """Places of the elements other than 0, one row each, or one tensor a dimension. Raises TypeError where the input is
    no tensor."""
    if not isinstance(input, Tensor):
        raise ApiTypeError(f"nonzero(): input must be a tensor, not {describe(input)}")
    found = tuple(Tensor.from_array(place.astype(np.int64)) for place in np.nonzero(np.atleast_1d(input.value)))
    if as_tuple:
        return found
    return Tensor.from_array(np.argwhere(input.value).astype(np.int64))
