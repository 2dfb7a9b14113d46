"""Indices and numbers that functions compute from arguments known at compile time: margins, diagonals, frames, grids,
and from tensors with known values.

Unlike the functions, these are called directly when a network is compiled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32, INT32
from mspc.mindspore_api.common.tensor import Tensor, note_view
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.function_arguments import Shape, axis_of, ints, least
from mspc.ops.operator_arguments import describe, plain

_MODES = ("constant", "reflect", "replicate", "circular")
_MIRRORS = {"reflect": "reflect", "symmetric": "symmetric", "edge": "replicate", "circular": "circular"}
"""Modes of `mirror_pad` as `pad` calls them."""


def margins(name: str, padding: Any, shape: Shape, mode: Any, value: Any) -> list[tuple[int, int]]:
    """Return (before, after) of every dimension, from pairs that begin with the last dimension. Raise ValueError for an
    unknown mode, a value in a mode without one, no pairs, removal of more elements than exist, or, in a mode that
    copies elements, margins larger than it supports."""
    if mode not in _MODES:
        raise ApiValueError(f"{name}(): mode is {describe(mode)}, not {', '.join(map(repr, _MODES))}")
    if mode != "constant" and value is not None:
        raise ApiValueError(f"{name}(): mode {mode!r} takes no value, which is {describe(value)}")
    given = ints(name, "padding", padding.array.reshape(-1).tolist() if isinstance(padding, Tensor) else padding)
    if len(given) % 2 or len(given) > 2 * len(shape):
        raise ApiValueError(f"{name}(): padding {given} must be pairs for at most {len(shape)} dimensions")
    pairs = [(given[i], given[i + 1]) for i in range(0, len(given), 2)]
    found = [(0, 0)] * (len(shape) - len(pairs)) + pairs[::-1]
    _check_margins(name, found, shape, mode)
    return found


def _check_margins(name: str, pairs: Sequence[tuple[int, int]], shape: Shape, mode: str) -> None:
    """Raise ValueError for margins larger than the mode supports."""
    for d, (pair, size) in enumerate(zip(pairs, shape, strict=True)):
        limits = {"constant": math.inf, "reflect": size - 1, "replicate": math.inf if size else 0}
        most = limits.get(mode, size)
        if (any(pair) and max(pair) > max(most, 0)) or size + min(pair[0], 0) + min(pair[1], 0) < 0:
            what = f"dimension {d} of size {size} cannot have the margins {pair} in mode {mode!r}"
            raise ApiValueError(f"{name}(): {what}")


def mirrored(mode: Any, paddings: Any, shape: Shape) -> tuple[str, Sequence[tuple[int, int]]]:
    """Return (the mode as `pad` calls it, the margins of each dimension) of `mirror_pad`. Raise ValueError for another
    mode, or margins that are no pairs or do not fit."""
    kind = _MIRRORS.get(str(mode).lower())
    if kind is None:
        raise ApiValueError(f"mirror_pad(): mode must be one of {', '.join(map(repr, _MIRRORS))}, not {mode!r}")
    pairs: Any = plain(paddings)
    fits = isinstance(pairs, tuple) and len(pairs) == len(shape)
    fits = fits and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    if not fits or not all(type(n) is int and n >= 0 for pair in pairs for n in pair):
        what = f"paddings must be {len(shape)} pairs of integers not below 0, not {describe(paddings)}"
        raise ApiValueError(f"mirror_pad(): {what}")
    _check_margins("mirror_pad", pairs, shape, kind)
    return kind, pairs


def margin_places(size: int, pair: tuple[int, int], mode: str) -> Tensor:
    """Return the source places of the elements along a dimension of this size, margins included."""
    places = np.arange(-pair[0], size + pair[1])
    if mode == "replicate":
        places = places.clip(0, size - 1)
    elif mode == "circular":
        places = places % size
    elif mode == "symmetric":
        turned = places % (2 * size)
        places = np.minimum(turned, 2 * size - 1 - turned)
    else:
        places = size - 1 - np.abs(size - 1 - np.abs(places))
    return Tensor.from_array(places)


def inside(shape: Shape, pairs: list[tuple[int, int]]) -> tuple[Shape, Shape, Shape]:
    """Return (begin, end, strides) of the elements that negative margins leave."""
    begin = tuple(max(0, -before) for before, _ in pairs)
    end = tuple(n + min(0, after) for n, (_, after) in zip(shape, pairs, strict=True))
    return begin, end, (1,) * len(shape)


def outside(pairs: list[tuple[int, int]]) -> tuple[int, ...]:
    """Return the margins to add, with the pair of the last dimension first."""
    return tuple(n for pair in reversed(outside_pairs(pairs)) for n in pair)


def outside_pairs(pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the margins to add, as pairs."""
    return tuple((max(0, before), max(0, after)) for before, after in pairs)


def turns(name: str, shifts: Any, dims: Any, shape: Shape) -> list[tuple[int, int]]:
    """Return (dimension, shift) of a rotation. Raise ValueError if not every dimension has its shift."""
    steps, axes = ints(name, "shifts", shifts), ints(name, "dims", dims)
    if len(steps) != len(axes):
        raise ApiValueError(f"{name}(): shifts {steps} and dims {axes} must be as many")
    found = [(axis_of(name, axis, len(shape)), step) for axis, step in zip(axes, steps, strict=True)]
    return [(axis, step % shape[axis]) for axis, step in found if shape[axis] and step % shape[axis]]


def turned_plane(name: str, dims: Any, rank: int) -> tuple[int, int]:
    """Return two dimensions counted from 0. Raise ValueError if they are not two."""
    axes = [axis_of(name, axis, rank) for axis in ints(name, "dims", dims)]
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ApiValueError(f"{name}(): dims must be two dimensions, not {describe(dims)}")
    return axes[0], axes[1]


def mesh_shapes(name: str, shapes: Sequence[Shape | None], indexing: Any) -> tuple[list[Shape], Shape]:
    """Return (the shape of each vector within the grid, the grid's shape). Raise ValueError if they are no vectors."""
    if indexing not in ("xy", "ij"):
        raise ApiValueError(f"{name}(): indexing must be 'xy' or 'ij', not {describe(indexing)}")
    if not shapes or any(shape is None or len(shape) > 1 for shape in shapes):
        raise ApiValueError(f"{name}(): the inputs must be vectors, not of the shapes {list(shapes)}")
    count = len(shapes)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else [*range(count)]
    sizes = [math.prod(shape or ()) for shape in shapes]
    own = [tuple(sizes[i] if order[d] == i else 1 for d in range(count)) for i in range(count)]
    return own, tuple(sizes[i] for i in order)


def diagonal_order(name: str, rank: int, dim1: Any, dim2: Any) -> tuple[int, ...]:
    """Return the order of dimensions with two of them at the end. Raise ValueError if these are not two."""
    first, second = axis_of(name, dim1, rank), axis_of(name, dim2, rank)
    if first == second:
        raise ApiValueError(f"{name}(): dimensions {dim1} and {dim2} are the same")
    return (*[d for d in range(rank) if d not in (first, second)], first, second)


def diagonal_view(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the diagonal of two dimensions, outside of a network, as a view."""
    source = input if isinstance(input, Tensor) else Tensor(input)
    diagonal_order("diagonal", len(source.shape), dim1, dim2)
    array = source.array
    made = Tensor.from_array(np.diagonal(array, offset, dim1, dim2))
    note_view(made, source, array)
    return made


def places_in(order: Shape) -> Shape:
    """Return the inverse of an order of dimensions."""
    return tuple(order.index(d) for d in range(len(order)))


def diagonal_places(rows: int, columns: int, offset: int) -> Tensor:
    """Return the flat indices of a diagonal of a matrix."""
    first = np.arange(max(0, -offset), rows)
    first = first[first + offset < columns]
    return Tensor.from_array((first * columns + first + offset).astype(np.int64))


def places_of(shape: Shape, axis: int) -> Tensor:
    """Return the index along `axis` of every element of a tensor of this shape."""
    line = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return Tensor.from_array(np.ascontiguousarray(np.broadcast_to(line, shape)))


def vector_of(name: str, what: str, values: Any) -> Tensor:
    """Return numbers known when a network is compiled as a vector. Raise TypeError if they are none."""
    try:
        found = np.asarray(values.array if isinstance(values, Tensor) else values, np.float64)
    except (TypeError, ValueError):
        found = None
    if found is None or found.ndim != 1:
        raise ApiTypeError(
            f"{name}(): {what} must be numbers known at compile time, not {describe(values)}", code="E0305"
        )
    return Tensor.from_array(found)


def shares(name: str, q: Any) -> Tensor:
    """Return numbers from 0 to 1, a vector, or one. Raise ValueError for other numbers."""
    found = vector_of(name, "q", [q] if isinstance(q, int | float) else q)
    if not ((found.array >= 0) & (found.array <= 1)).all():
        raise ApiValueError(f"{name}(): q must be numbers from 0 to 1, not {describe(q)}")
    return found if not isinstance(q, int | float) else Tensor.from_array(found.array.reshape(()))


def crossed(name: str, dim: Any, shape: Shape) -> tuple[int, Tensor, Tensor]:
    """Return (a dimension of size three, the indices of the factors of a cross product along it: those of the second
    and of the third component for each). Raise ValueError if there is no such dimension."""
    axis = next((d for d, n in enumerate(shape) if n == 3), None) if dim is None else axis_of(name, dim, len(shape))
    if axis is None or shape[axis] != 3:
        raise ApiValueError(f"{name}(): shape {shape} has no dimension {'' if dim is None else f'{dim} '}of 3 elements")
    return axis, Tensor.from_array(np.array([1, 2, 0])), Tensor.from_array(np.array([2, 0, 1]))


def triangle_places(name: str, rows: Any, columns: Any, offset: Any, lower: bool) -> Tensor:
    """Return [2, n]: the indices of a triangle of a matrix. Raise ValueError for sizes below 0."""
    shape = least(name, "row", rows, 0), least(name, "col", columns, 0)
    (shift,) = ints(name, "offset", offset)
    found = np.tril_indices(shape[0], shift, shape[1]) if lower else np.triu_indices(shape[0], shift, shape[1])
    return Tensor.from_array(np.stack(found).astype(np.int64))


def chosen_places(name: str, size: int, count: Any, again: bool) -> Tensor:
    """Return [n, count]: every choice of `count` of `size` indices in order; with `again` an index may be repeated.
    Raise ValueError if `count` is below 0."""
    choose = itertools.combinations_with_replacement if again else itertools.combinations
    found = [*choose(range(size), least(name, "r", count, 0))]
    return Tensor.from_array(np.array(found, np.int64).reshape(-1, count))


def nonzero(input: Any, as_tuple: Any) -> Any:
    """Return indices of the nonzero elements, one row each, or one tensor per dimension. Raise TypeError if the input
    is no tensor."""
    if not isinstance(input, Tensor):
        raise ApiTypeError(f"nonzero(): input must be a tensor, not {describe(input)}")
    found = tuple(Tensor.from_array(place.astype(np.int64)) for place in np.nonzero(np.atleast_1d(input.array)))
    if as_tuple:
        return found
    return Tensor.from_array(np.argwhere(input.array).astype(np.int64))


def base_grid(name: str, theta: Shape, size: Any, align_corners: bool) -> Tensor:
    """Return coordinates from -1 to 1 of an image of the shape `size`, followed by a 1, [1, points, dimensions + 1],
    Float64. Raise ValueError if matrices of the shape `theta` do not fit the size."""
    shape = ints(name, "size", size)
    dims = len(shape) - 2
    if dims not in (2, 3) or min(shape) < 1:
        raise ApiValueError(f"{name}(): size must be 4 or 5 positive integers, not {describe(size)}")
    if theta != (shape[0], dims, dims + 1):
        raise ApiValueError(f"{name}(): theta has shape {theta}, not {(shape[0], dims, dims + 1)} as for size {shape}")
    lines = [np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1) for n in shape[2:]]
    if not align_corners:
        lines = [line * ((n - 1) / n) for line, n in zip(lines, shape[2:], strict=True)]
    places = [*np.meshgrid(*lines, indexing="ij")][::-1]
    return Tensor.from_array(np.stack([*places, np.ones(shape[2:])], axis=-1).reshape(1, -1, dims + 1))


def corners(count: int, dims: int) -> list[tuple[int, ...]]:
    """Return the offsets of the pixels that contribute to a place between pixels, `count` along each dimension."""
    return list(itertools.product(range(count), repeat=dims))


def tensor_of_numbers(name: str, values: Sequence[Any]) -> Any:
    """Return numbers known at compile time as a constant tensor, of the kind of the first. Raise TypeError for other
    values."""
    given = tuple(values) if isinstance(values, tuple | list | range) else ()
    if not given or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in given):
        raise ApiTypeError(
            f"{name}(): the input must be numbers known at compile time, not {describe(values)}", code="E0305"
        )
    return Tensor(given, INT32 if isinstance(given[0], int) else FLOAT32)


def _known(name: str, what: str, value: Any) -> np.ndarray:
    """Return the values. Raise TypeError if they are computed by the network."""
    if isinstance(value, Tensor):
        return value.array
    if isinstance(value, np.ndarray):
        return value
    reason = "the shape of the result depends on it, and it is not known at compile time"
    raise ApiTypeError(f"{name}(): {what} is {describe(value)}; {reason}", ["call it outside of the network"])


def masked_select(mask: Any, shape: Shape, name: str = "masked_select") -> tuple[Shape, Tensor]:
    """Return (the broadcast shape of a tensor and the mask, flat indices of true elements in order). Raise TypeError if
    the mask is not Bool; ValueError if the shapes do not fit."""
    known = _known(name, "mask", mask)
    if known.dtype != bool:
        raise ApiTypeError(f"{name}(): mask must be Bool, not {mask.dtype}")
    try:
        result_shape = np.broadcast_shapes(known.shape, shape)
    except ValueError:
        raise ApiValueError(f"{name}(): a mask of shape {known.shape} does not fit a tensor of {shape}") from None
    return result_shape, Tensor.from_array(np.flatnonzero(np.broadcast_to(known, result_shape)).astype(np.int64))


def masked_scatter(mask: Any, shape: Shape) -> Tensor:
    """Return the flat indices of true elements of the mask in order."""
    return masked_select(mask, shape, "masked_scatter")[1]


def unique(x: Any) -> tuple[Tensor, Tensor]:
    """Return (the distinct elements in order of first occurrence, the index of each element among them)."""
    array = _known("unique", "input", x)
    values, first, inverse = np.unique(array.reshape(-1), return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Tensor.from_array(values[order]), Tensor.from_array(place[inverse].reshape(array.shape).astype(np.int32))


def unique_consecutive(x: Any, inverse: Any, counts: Any, dim: Any) -> Any:
    """Return the first of every run of equal elements, or of slices along a dimension, and the requested facts of the
    runs."""
    array = _known("unique_consecutive", "input", x)
    rows = array.reshape(-1) if dim is None else np.moveaxis(array, axis_of("unique_consecutive", dim, array.ndim), 0)
    changes = rows[1:] != rows[:-1]
    starts = np.concatenate([[True] * min(1, len(rows)), changes.reshape(len(changes), -1).any(1)]).astype(bool)
    values = rows[starts] if dim is None else np.moveaxis(rows[starts], 0, dim)
    run = np.cumsum(starts) - 1
    found = [Tensor.from_array(np.ascontiguousarray(values))]
    if inverse:
        found.append(Tensor.from_array(run.reshape(array.shape if dim is None else -1).astype(np.int64)))
    if counts:
        found.append(Tensor.from_array(np.bincount(run, minlength=0).astype(np.int64)))
    return tuple(found) if len(found) > 1 else found[0]


def unique_sorted(x: Any, inverse: Any, counts: Any, dim: Any) -> Any:
    """Return every distinct element, or slice along a dimension, sorted, and the requested facts of them."""
    array = _known("unique", "input", x)
    axis = None if dim is None else axis_of("unique", dim, array.ndim)
    values, place, count = np.unique(array, return_inverse=True, return_counts=True, axis=axis)
    found = [Tensor.from_array(values)]
    if inverse:
        found.append(Tensor.from_array(place.reshape(array.shape if dim is None else -1).astype(np.int64)))
    if counts:
        found.append(Tensor.from_array(count.astype(np.int64)))
    return tuple(found) if len(found) > 1 else found[0]


def bincount(x: Any, minlength: Any) -> tuple[Tensor, int]:
    """Return (a vector of integers from 0 on, the number of bins). Raise ValueError if it is no vector, or has other
    numbers."""
    array = _known("bincount", "input", x)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
        raise ApiValueError(f"bincount(): input must be a vector of integers from 0 on, not {describe(x)}")
    return Tensor.from_array(array), max(least("bincount", "minlength", minlength, 0), int(array.max(initial=-1)) + 1)


def sequence_mask(lengths: Any) -> int:
    """Return the largest of the integers."""
    return int(_known("sequence_mask", "lengths", lengths).max(initial=0))


def _cosines(places: np.ndarray, *numbers: float) -> np.ndarray:
    """Return the first number less the second times the cosine, and so on with twice the angle and alternating
    signs."""
    return sum((-1) ** i * number * np.cos(2 * np.pi * i * places) for i, number in enumerate(numbers))  # type: ignore[return-value]  # never 0


_WINDOWS: dict[str, Callable[..., np.ndarray]] = {
    "bartlett": lambda places: 1 - np.abs(2 * places - 1),
    "blackman": lambda places: _cosines(places, 0.42, 0.5, 0.08),
    "hamming": _cosines,
    "hann": lambda places: _cosines(places, 0.5, 0.5),
    "kaiser": lambda places, beta: np.i0(beta * np.sqrt(np.maximum(0, 1 - (2 * places - 1) ** 2))) / np.i0(beta),
}
"""Windows by their kind, of places from 0 to 1."""


def window(kind: str, length: Any, periodic: Any, numbers: Sequence[float]) -> Tensor:
    """Return a window of `length` numbers, Float64. Raise ValueError if `length` is no integer from 0 on."""
    if isinstance(length, Tensor) and length.size == 1:
        length = length.item()
    count = least(f"{kind}_window", "window_length", length, 0)
    if count < 2:
        return Tensor.from_array(np.ones(count))
    places = np.arange(count) / (count if periodic else count - 1)
    return Tensor.from_array(_WINDOWS[kind](places, *numbers))


def frequencies(name: str, count: Any, apart: Any, halved: bool) -> Tensor:
    """Return the frequencies of a transform of `count` values, Float64. Raise ValueError if there are none."""
    size = least(name, "n", count, 1)
    return Tensor.from_array(np.fft.rfftfreq(size, apart) if halved else np.fft.fftfreq(size, apart))


def frame_places(name: str, size: int, length: int, hop: int) -> Tensor:
    """Return [parts, length]: the indices of the parts of a signal. Raise ValueError if it is shorter than one part."""
    if size < length:
        raise ApiValueError(f"{name}(): the signal has {size} values, and a part needs n_fft = {length}")
    starts = np.arange(0, size - length + 1, hop)
    return Tensor.from_array(starts[:, None] + np.arange(length))
