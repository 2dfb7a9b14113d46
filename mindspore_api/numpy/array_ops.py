"""`mindspore.numpy`: making, indexing, reordering and joining tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from mspc.ir.types import BOOL, FLOAT32, INT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function.array_func import copied_diagonal
from mspc.mindspore_api.ops.function_arguments import axis_of, element_type, sizes_of
from mspc.mindspore_api.ops.numpy_arguments import (
    float_type,
    grid,
    joint,
    joint_of,
    line,
    made_line,
    made_of,
    moved,
    number_kind,
    padded_widths,
    pieces,
    refuse,
    spaced,
)


def operand(value: Any) -> Any:
    """Return a number as a tensor of 32 bits; a tensor unchanged."""
    if isinstance(value, (bool, int, float)):
        return ops.scalar_to_tensor(value, number_kind(value))
    return value


def pair(x1: Any, x2: Any) -> Any:
    """Return two operands in the element type of their common result."""
    left, right = operand(x1), operand(x2)
    dtype = joint(left.dtype, right.dtype)
    return as_type(left, dtype), as_type(right, dtype)


def as_type(x: Any, dtype: Any) -> Any:
    """Return x in an element type; unchanged if that is None or its own."""
    return x if dtype is None or x.dtype == dtype else ops.cast(x, dtype)


def as_float(x: Any) -> Any:
    """Return x in the element type in which functions of real numbers compute."""
    return as_type(x, float_type(x.dtype))


newaxis = None
"""A new dimension among the parts of an index."""


def array(obj: Any, dtype: Any = None, copy: bool = True, ndmin: int = 0) -> Any:
    """Return a tensor of numbers, of nested lists of numbers, or of a tensor; Python numbers become Int32, Float32 or
    Bool."""
    found = as_type(obj, dtype) if hasattr(obj, "shape") and hasattr(obj, "dtype") and _is_of_graph(obj) else made_of(
        "array", obj, dtype
    )  # fmt: skip
    missing = ndmin - len(found.shape)
    found = ops.reshape(found, (1,) * missing + found.shape) if missing > 0 else found
    return ops.deepcopy(found) if copy and found is obj else found


def _is_of_graph(obj: Any) -> bool:
    return not isinstance(obj, numpy.ndarray)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """Return a tensor of one value; a number determines the element type."""
    if hasattr(fill_value, "shape"):
        return ops.broadcast_to(as_type(fill_value, dtype), sizes_of([shape]))
    return ops.full(sizes_of([shape]), fill_value, dtype=number_kind(fill_value) if dtype is None else dtype)


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """Return a tensor of one value, of the shape and element type of a."""
    a = array(a)
    return full(a.shape if shape is None else shape, fill_value, a.dtype if dtype is None else dtype)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
    """Return numbers from start, or from 0 to start if it is the only argument, up to but excluding stop, by step."""
    first, last, by = (0, start, 1) if stop is None else (start, stop, 1)
    by = by if step is None else step
    are_integers = isinstance(first, int) and isinstance(last, int) and isinstance(by, int)
    return ops.arange(first, last, by, dtype=(INT32 if are_integers else FLOAT32) if dtype is None else dtype)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:
    """Return `num` numbers from start to stop, Float32; and the distance between them with retstep. start and stop are
    numbers, so that axis has no effect."""
    count = spaced("linspace", (start, stop), num)
    found = made_line(line(start, stop, count, endpoint), dtype)
    if retstep:
        return found, made_of("linspace", (stop - start) / max(count - 1 if endpoint else count, 1))
    return found


def indices(dimensions: Any, dtype: Any = INT32, sparse: bool = False) -> Any:
    """Return for every dimension the index of each element along it, a tuple."""
    if sparse:
        refuse("indices", "sparse=True")
    return tuple([as_type(part, element_type(dtype)) for part in grid(tuple(dimensions))])


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy") -> Any:
    """Return coordinates of a grid from those along every dimension, a tuple."""
    if sparse:
        refuse("meshgrid", "sparse=True")
    return ops.meshgrid(*xi, indexing=indexing)


def diagflat(v: Any, k: int = 0) -> Any:
    """Return a matrix with the elements of v on diagonal k."""
    flat = ops.reshape(array(v), (-1,))
    if k == 0:
        return ops.diag(flat)
    return ops.diag_embed(flat, k)


def ravel(x: Any) -> Any:
    """Return all elements in one dimension."""
    return ops.reshape(x, (-1,))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Move some dimensions to other positions."""
    return ops.transpose(a, moved(len(a.shape), source, destination))


def expand_dims(a: Any, axis: Any) -> Any:
    """Insert a new dimension of size 1 at `axis`, or several."""
    if isinstance(axis, int):
        return ops.expand_dims(a, axis)
    rank = len(a.shape) + len(axis)
    new = [axis_of("expand_dims", place, rank) for place in axis]
    sizes = list(a.shape)
    return ops.reshape(a, tuple([1 if d in new else sizes.pop(0) for d in range(rank)]))


def atleast_1d(*arys: Any) -> Any:
    """Return tensors with at least one dimension; one argument unchanged, several as a list."""
    found = [ops.reshape(x, (1,)) if len(x.shape) == 0 else x for x in map(array, arys)]
    return found[0] if len(found) == 1 else found


def atleast_2d(*arys: Any) -> Any:
    """Return tensors with at least two dimensions; new ones come first."""
    found = [array(x, ndmin=2) for x in arys]
    return found[0] if len(found) == 1 else found


def atleast_3d(*arys: Any) -> Any:
    """Return tensors with at least three dimensions: a vector in the middle one, a matrix in the first two."""
    found = []
    for x in map(array, arys):
        if len(x.shape) < 2:
            x = ops.reshape(x, (1, -1, 1))
        elif len(x.shape) == 2:
            x = ops.expand_dims(x, 2)
        found = [*found, x]
    return found[0] if len(found) == 1 else found


def of_one_type(arrays: Any) -> Any:
    tensors = [array(x) for x in arrays]
    dtype = joint_of([x.dtype for x in tensors])
    return [as_type(x, dtype) for x in tensors]


def concatenate(arrays: Any, axis: Any = 0) -> Any:
    """Concatenate tensors along `axis`; None flattens each first."""
    tensors = of_one_type(arrays)
    return ops.concat([ravel(x) for x in tensors], 0) if axis is None else ops.concat(tensors, axis)


def hstack(tup: Any) -> Any:
    """Concatenate tensors along dimension 1, vectors along dimension 0."""
    tensors = [atleast_1d(x) for x in tup]
    return concatenate(tensors, 0 if len(tensors[0].shape) == 1 else 1)


def vstack(tup: Any) -> Any:
    """Concatenate tensors along dimension 0; vectors are rows."""
    return concatenate([atleast_2d(x) for x in tup], 0)


def dstack(tup: Any) -> Any:
    """Concatenate tensors along dimension 2."""
    return concatenate([atleast_3d(x) for x in tup], 2)


def column_stack(tup: Any) -> Any:
    """Concatenate columns; vectors are columns."""
    return concatenate([ops.expand_dims(x, 1) if len(x.shape) == 1 else x for x in map(array, tup)], 1)


def parts_of(name: str, x: Any, wanted: Any, axis: int, equal: bool) -> Any:
    rank = len(x.shape)
    axis = axis_of(name, axis, rank)
    found = []
    for first, last in pieces(name, x.shape[axis], wanted, equal):
        begin = tuple([first if d == axis else 0 for d in range(rank)])
        end = tuple([max(first, last) if d == axis else x.shape[d] for d in range(rank)])
        found = [*found, ops.strided_slice(x, begin, end, (1,) * rank)]
    return found


def broadcast_arrays(*args: Any) -> Any:
    """Broadcast tensors to their common shape, a list."""
    rank = max([len(x.shape) for x in args])
    shapes = [(1,) * (rank - len(x.shape)) + x.shape for x in args]
    shape = tuple([max([sizes[d] for sizes in shapes]) for d in range(rank)])
    return [ops.broadcast_to(x, shape) for x in args]


def tile(a: Any, reps: Any) -> Any:
    """Repeat the tensor along every dimension; new ones come first."""
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    missing = len(a.shape) - len(reps)
    return ops.tile(a, (1,) * missing + reps if missing > 0 else reps)


def flip(m: Any, axis: Any = None) -> Any:
    """Reverse the order along `axis`, None for all."""
    every = tuple(range(len(m.shape)))
    return ops.flip(m, every if axis is None else (axis,) if isinstance(axis, int) else tuple(axis))


def diag(v: Any, k: int = 0) -> Any:
    """Return a matrix with a vector on diagonal k, or diagonal k of a matrix."""
    if len(v.shape) == 1:
        return ops.diag(v) if k == 0 else ops.diag_embed(v, k)
    return copied_diagonal(v, k, 0, 1)


def take(a: Any, indices: TensorLike | int | Sequence[Any], axis: Any = None, mode: str = "clip") -> Any:
    """Return slices along `axis` at indices, None: elements of the flat tensor. Indices out of range are clipped, or
    wrapped for mode "wrap"."""
    indices = array(indices)
    data, dim = (ravel(a), 0) if axis is None else (a, axis_of("take", axis, len(a.shape)))
    size = data.shape[dim]
    if mode == "wrap":
        indices = ops.floor_mod(indices, size)
    elif mode == "clip":
        indices = ops.clip_by_value(indices, 0, size - 1)
    else:
        refuse("take", f"mode={mode!r}")
    return ops.gather(data, indices, dim)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return x for true elements of the condition, else y. Without x and y the indices of true elements, which is
    refused."""
    if x is None or y is None:
        return refuse("where", "a condition alone, whose result has no known shape,")
    left, right = pair(x, y)
    return ops.where(as_type(condition, BOOL), left, right)


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Return for each element that of the first choice with a true condition, else `default`."""
    choices = of_one_type([*choicelist, operand(default)])
    found = choices[-1]
    for i in range(len(condlist) - 1, -1, -1):
        found = ops.where(condlist[i], choices[i], found)
    return found


def pad(
    arr: Any, pad_width: Any, mode: str = "constant", stat_length: Any = None, constant_values: Any = 0,
    end_values: Any = 0, reflect_type: str = "even",
) -> Any:  # fmt: skip
    """Add elements around a tensor: a number, or for mode "edge", "reflect", "symmetric" and "wrap" copies of its own.
    The modes that use stat_length, end_values and reflect_type are refused."""
    widths = padded_widths("pad", pad_width, len(arr.shape))
    if mode == "constant":
        flat = []
        for ahead, behind in widths[::-1]:
            flat = [*flat, ahead, behind]
        return ops.pad(arr, flat, "constant", constant_values)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        return refuse("pad", f"mode={mode!r}")
    for axis in range(len(arr.shape)):
        arr = ops.gather(arr, _places(arr.shape[axis], widths[axis], mode), axis)
    return arr


def _places(size: int, width: Any, mode: str) -> Any:
    found = []
    for place in range(-width[0], size + width[1]):
        if mode == "edge":
            place = min(max(place, 0), size - 1)
        elif mode == "wrap":
            place = place % size
        elif mode == "symmetric":
            place = place % (2 * size)
            place = place if place < size else 2 * size - 1 - place
        elif size == 1:
            place = 0
        else:
            place = place % (2 * size - 2)
            place = place if place < size else 2 * size - 2 - place
        found = [*found, place]
    return array(found, INT32)


def size(a: Any, axis: Any = None) -> Any:
    """Return the number of elements, of all or along `axis`, an int."""
    return a.size if axis is None else a.shape[axis]


def shape(a: Any) -> Any:
    """Return the shape, a tuple of ints."""
    return a.shape


def sort(a: Any, axis: Any = -1) -> Any:
    """Return elements sorted along `axis`; None: the flat tensor."""
    values, _ = ops.sort(ravel(a), 0) if axis is None else ops.sort(a, axis)
    return values


def choose(a: Any, choices: Any, mode: str = "clip") -> Any:
    """Return for each element that of the choice with the number in `a`; invalid numbers are clipped, or wrapped with
    mode "wrap"."""
    places = as_type(array(a), INT32)
    rows = [array(choice) for choice in choices]
    places = _within("choose", places, len(rows), mode)
    found = rows[0]
    for i, row in enumerate(rows):
        chosen, found = pair(row, found)
        found = ops.where(places == i, chosen, found)
    return found


def _within(name: str, places: Any, count: int, mode: str) -> Any:
    if mode == "clip":
        return ops.clip_by_value(places, 0, count - 1)
    if mode == "wrap":
        return ops.floor_mod(places, count)
    raise ApiValueError(f"{name}(): mode must be 'clip' or 'wrap', not {mode!r}")


def _strides(shape: Any, order: str, name: str) -> Any:
    if order not in ("C", "F"):
        raise ApiValueError(f"{name}(): order must be 'C' or 'F', not {order!r}")
    if order == "C":
        return [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return [math.prod(shape[:d]) for d in range(len(shape))]


def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    """Convert flat indices into a tensor of `shape` to indices along each dimension, clipped to it."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    places = array(indices)
    places = ops.clip_by_value(places, -math.prod(shape), math.prod(shape) - 1)
    places = ops.where(places < 0, places + math.prod(shape), places)
    strides = _strides(shape, order, "unravel_index")
    return tuple([ops.floor_mod(ops.floor_div(places, step), size) for step, size in zip(strides, shape, strict=True)])


def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Return for each element the result of the function, or the number, of the last true condition. If none is true,
    that of one extra function, or 0."""
    x = array(x)
    given = condlist if isinstance(condlist, (tuple, list)) and not _is_truth(condlist[0]) else [condlist]
    conditions = [as_type(array(condition), BOOL) for condition in given]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ApiValueError(f"piecewise(): {len(funclist)} functions for {len(conditions)} conditions")
    found = ops.zeros_like(x)
    if len(funclist) > len(conditions):
        found = _piece(x, funclist[len(conditions)], args, kw)
    for i, condition in enumerate(conditions):
        found = ops.where(condition, _piece(x, funclist[i], args, kw), found)
    return found


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _piece(x: Any, function: Any, args: Any, kw: Any) -> Any:
    value = function(x, *args, **kw) if callable(function) else function
    return ops.broadcast_to(as_type(operand(value), x.dtype), x.shape)


TURN = math.tau


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Return sums of products of two vectors, with the shorter one reversed and shifted: "full" for all overlaps,
    "same" as many as the longer has, "valid" only for complete overlaps."""
    a, v = _vectors("convolve", a, v)
    if a.shape[0] < v.shape[0]:
        a, v = v, a
    return _moved_along("convolve", a, ops.flip(v, (0,)), mode)


def _vectors(name: str, a: Any, v: Any) -> Any:
    a, v = pair(array(a, ndmin=1), array(v, ndmin=1))
    if len(a.shape) != 1 or len(v.shape) != 1 or 0 in (*a.shape, *v.shape):
        raise ApiValueError(f"{name}(): a and v must be vectors with elements, not of shapes {a.shape} and {v.shape}")
    return a, v


def _moved_along(name: str, a: Any, v: Any, mode: str) -> Any:
    """Return sums of products of v and every window of a, which is at least as long."""
    long, short = a.shape[0], v.shape[0]
    if mode == "full":
        ahead, behind = short - 1, short - 1
    elif mode == "same":
        ahead, behind = short // 2, short - 1 - short // 2
    elif mode == "valid":
        ahead, behind = 0, 0
    else:
        raise ApiValueError(f"{name}(): mode must be 'full', 'same' or 'valid', not {mode!r}")
    a = ops.Pad(((ahead, behind),))(a)
    count = long + ahead + behind - short + 1
    places = array([[i + j for j in range(short)] for i in range(count)])
    return ops.reduce_sum(ops.gather(a, places, 0) * v, 1)


def _check_count(name: str, what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ApiValueError(f"{name}(): {what} must be a number from 0 on, not {value!r}")


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return slopes of f along its dimensions, or those in `axis`: half of the difference of both neighbours, at the
    ends the difference to the only one. varargs: the distance of neighbours, one number, or one for each dimension."""
    if edge_order != 1:
        raise ApiValueError(f"gradient(): edge_order {edge_order!r} is not supported, 1 is")
    f = as_float(array(f))
    given = range(len(f.shape)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [axis_of("gradient", d, len(f.shape)) for d in given]
    steps = varargs if len(varargs) > 1 else (varargs[0] if len(varargs) == 1 else 1.0,) * len(axes)
    if len(steps) != len(axes):
        raise ApiValueError(f"gradient(): {len(steps)} distances for {len(axes)} dimensions")
    found = [_slope(f, d, step) for d, step in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else found


def _slope(f: Any, axis: int, step: Any) -> Any:
    size = f.shape[axis]
    if size < 2:
        raise ApiValueError(f"gradient(): dimension {axis} of {f.shape} has fewer than 2 elements")
    turned = ops.movedim(f, axis, 0)
    parts = [turned[1:2] - turned[0:1]]
    if size > 2:
        parts = [*parts, (turned[2:] - turned[:-2]) / 2.0]
    parts = [*parts, turned[size - 1 :] - turned[size - 2 : size - 1]]
    return ops.movedim(ops.concat(tuple(parts), 0), 0, axis) / step


def matrix_power(a: Any, n: int) -> Any:
    """Return square matrices to the power n, from 0 on."""
    a = array(a)
    if len(a.shape) < 2 or a.shape[-1] != a.shape[-2]:
        raise ApiValueError(f"matrix_power(): a must hold square matrices, and its shape is {a.shape}")
    _check_count("matrix_power", "n", n)
    if n == 0:
        return ops.broadcast_to(ops.eye(a.shape[-1], a.shape[-1], a.dtype), a.shape)
    found = a
    for _ in range(n - 1):
        found = ops.matmul(found, a)
    return found
