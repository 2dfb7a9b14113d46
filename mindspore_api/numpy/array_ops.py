"""`mindspore.numpy`: making, indexing, reordering and joining tensors."""

from __future__ import annotations

from typing import Any

import numpy

from mspc.ir.types import BOOL, FLOAT32, INT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.ops.function.array_func import copied_diagonal
from mspc.mindspore_api.ops.function_arguments import axis_of, sizes_of
from mspc.mindspore_api.ops.numpy_arguments import (
    float_type,
    joint,
    joint_of,
    line,
    made_line,
    made_of,
    number_kind,
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
    is_tensor = hasattr(obj, "shape") and hasattr(obj, "dtype") and not isinstance(obj, numpy.ndarray)
    found = as_type(obj, dtype) if is_tensor else made_of("array", obj, dtype)
    missing = ndmin - len(found.shape)
    found = ops.reshape(found, (1,) * missing + found.shape) if missing > 0 else found
    return ops.deepcopy(found) if copy and found is obj else found


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


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy") -> Any:
    """Return coordinates of a grid from those along every dimension, a tuple."""
    if sparse:
        refuse("meshgrid", "sparse=True")
    return ops.meshgrid(*xi, indexing=indexing)


def expand_dims(a: Any, axis: Any) -> Any:
    """Insert a new dimension of size 1 at `axis`, or several."""
    if isinstance(axis, int):
        return ops.expand_dims(a, axis)
    rank = len(a.shape) + len(axis)
    new = [axis_of("expand_dims", place, rank) for place in axis]
    sizes = list(a.shape)
    return ops.reshape(a, tuple([1 if d in new else sizes.pop(0) for d in range(rank)]))


def of_one_type(arrays: Any) -> Any:
    tensors = [array(x) for x in arrays]
    dtype = joint_of([x.dtype for x in tensors])
    return [as_type(x, dtype) for x in tensors]


def concatenate(arrays: Any, axis: Any = 0) -> Any:
    """Concatenate tensors along `axis`; None flattens each first."""
    tensors = of_one_type(arrays)
    return ops.concat([ops.reshape(x, (-1,)) for x in tensors], 0) if axis is None else ops.concat(tensors, axis)


def parts_of(name: str, x: Any, wanted: Any, axis: int, equal: bool) -> Any:
    rank = len(x.shape)
    axis = axis_of(name, axis, rank)
    found = []
    for first, last in pieces(name, x.shape[axis], wanted, equal):
        begin = tuple([first if d == axis else 0 for d in range(rank)])
        end = tuple([max(first, last) if d == axis else x.shape[d] for d in range(rank)])
        found = [*found, ops.strided_slice(x, begin, end, (1,) * rank)]
    return found


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


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return x for true elements of the condition, else y. Without x and y the indices of true elements, which is
    refused."""
    if x is None or y is None:
        return refuse("where", "a condition alone, whose result has no known shape,")
    left, right = pair(x, y)
    return ops.where(as_type(condition, BOOL), left, right)


def sort(a: Any, axis: Any = -1) -> Any:
    """Return elements sorted along `axis`; None: the flat tensor."""
    values, _ = ops.sort(ops.reshape(a, (-1,)), 0) if axis is None else ops.sort(a, axis)
    return values
