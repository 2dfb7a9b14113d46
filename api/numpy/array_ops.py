"""These functions change the shape of tensors, join them, split them and choose from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.numpy.array_creations import array
from mspc.api.numpy.promotion import as_type, operand, pair
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of
from mspc.api.ops.numpy_arguments import joint_of, moved, padded_widths, pieces, refuse
from mspc.ir.types import BOOL, INT32


def ravel(x: Any) -> Any:
    """All elements in one dimension."""
    return ops.reshape(x, (-1,))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Some dimensions moved to other places."""
    return ops.transpose(a, moved(len(a.shape), source, destination))


def rollaxis(x: Any, axis: int, start: int = 0) -> Any:
    """A dimension moved to stand ahead of dimension `start`."""
    rank = len(x.shape)
    axis = axis_of("rollaxis", axis, rank)
    start = start + rank if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


def expand_dims(a: Any, axis: Any) -> Any:
    """A new dimension of size 1 at `axis`, or several."""
    if isinstance(axis, int):
        return ops.expand_dims(a, axis)
    rank = len(a.shape) + len(axis)
    new = [axis_of("expand_dims", place, rank) for place in axis]
    sizes = list(a.shape)
    return ops.reshape(a, tuple([1 if d in new else sizes.pop(0) for d in range(rank)]))


def atleast_1d(*arys: Any) -> Any:
    """Tensors with at least one dimension; one alone as it is, several as a list."""
    found = [ops.reshape(x, (1,)) if len(x.shape) == 0 else x for x in map(array, arys)]
    return found[0] if len(found) == 1 else found


def atleast_2d(*arys: Any) -> Any:
    """Tensors with at least two dimensions, new ones ahead."""
    found = [array(x, ndmin=2) for x in arys]
    return found[0] if len(found) == 1 else found


def atleast_3d(*arys: Any) -> Any:
    """Tensors with at least three dimensions: a vector in the middle one, a matrix in the first two."""
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
    """Tensors one after another along `axis`; None makes each one dimension first."""
    tensors = of_one_type(arrays)
    return ops.concat([ravel(x) for x in tensors], 0) if axis is None else ops.concat(tensors, axis)


def hstack(tup: Any) -> Any:
    """Tensors one after another along dimension 1, vectors along dimension 0."""
    tensors = [atleast_1d(x) for x in tup]
    return concatenate(tensors, 0 if len(tensors[0].shape) == 1 else 1)


def vstack(tup: Any) -> Any:
    """Tensors below each other; vectors are rows."""
    return concatenate([atleast_2d(x) for x in tup], 0)


def dstack(tup: Any) -> Any:
    """Tensors one after another along dimension 2."""
    return concatenate([atleast_3d(x) for x in tup], 2)


def column_stack(tup: Any) -> Any:
    """Columns side by side; vectors are columns."""
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
    """Tensors repeated to the shape of them all, a list."""
    rank = max([len(x.shape) for x in args])
    shapes = [(1,) * (rank - len(x.shape)) + x.shape for x in args]
    shape = tuple([max([sizes[d] for sizes in shapes]) for d in range(rank)])
    return [ops.broadcast_to(x, shape) for x in args]


def tile(a: Any, reps: Any) -> Any:
    """Repeated along every dimension; new ones come first."""
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    missing = len(a.shape) - len(reps)
    return ops.tile(a, (1,) * missing + reps if missing > 0 else reps)


def flip(m: Any, axis: Any = None) -> Any:
    """In reverse order along `axis`, None for all."""
    every = tuple(range(len(m.shape)))
    return ops.flip(m, every if axis is None else (axis,) if isinstance(axis, int) else tuple(axis))


def diag(v: Any, k: int = 0) -> Any:
    """A matrix with a vector on diagonal k, or diagonal k of a matrix."""
    if len(v.shape) == 1:
        return ops.diag(v) if k == 0 else ops.diag_embed(v, k)
    return ops.diagonal(v, k)


def take(a: Any, indices: TensorLike | int | Sequence[Any], axis: Any = None, mode: str = "clip") -> Any:
    """Slices along `axis` at indices, None: of all elements; those outside are moved to the nearest, or round for
    mode "wrap"."""
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
    """x where the condition holds, y elsewhere; without them the places where it holds."""
    if x is None or y is None:
        return refuse("where", "a condition alone, whose result has no known shape,")
    left, right = pair(x, y)
    return ops.where(as_type(condition, BOOL), left, right)


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Of some tensors the element of the first whose condition holds, else `default`."""
    choices = of_one_type([*choicelist, operand(default)])
    found = choices[-1]
    for i in range(len(condlist) - 1, -1, -1):
        found = ops.where(condlist[i], choices[i], found)
    return found


def pad(
    arr: Any, pad_width: Any, mode: str = "constant", stat_length: Any = None, constant_values: Any = 0,
    end_values: Any = 0, reflect_type: str = "even",
) -> Any:  # fmt: skip
    """More elements around: a number, or for mode "edge", "reflect", "symmetric" and "wrap" those that are there. The
    modes that stat_length, end_values and reflect_type belong to are refused."""
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
    """The number of elements, of all or along `axis`, an int."""
    return a.size if axis is None else a.shape[axis]


def shape(a: Any) -> Any:
    """The shape, a tuple of ints."""
    return a.shape


def sort(a: Any, axis: Any = -1) -> Any:
    """Elements in order along `axis`; None: all in one dimension."""
    values, _ = ops.sort(ravel(a), 0) if axis is None else ops.sort(a, axis)
    return values
