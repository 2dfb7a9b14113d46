"""These functions choose elements by their places, or apply functions to one slice after another."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.numpy.array_creations import array
from mspc.api.numpy.promotion import as_type, operand, pair
from mspc.ir.types import BOOL, INT32


def choose(a: Any, choices: Any, mode: str = "clip") -> Any:
    """Of each place the element of the choice that `a` names there; numbers of no choice are clipped, or counted round
    by mode "wrap"."""
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
    """Of places in a tensor of `shape`, read in a row, those along each dimension, clipped to it."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    places = array(indices)
    places = ops.clip_by_value(places, -math.prod(shape), math.prod(shape) - 1)
    places = ops.where(places < 0, places + math.prod(shape), places)
    strides = _strides(shape, order, "unravel_index")
    return tuple([ops.floor_mod(ops.floor_div(places, step), size) for step, size in zip(strides, shape, strict=True)])


def ravel_multi_index(multi_index: Any, dims: Any, mode: str = "clip", order: str = "C") -> Any:
    """The places in a row of a tensor of shape `dims` of those along each dimension; mode as of `choose`."""
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    rows = [array(places) for places in multi_index]
    if len(rows) != len(dims):
        raise ApiValueError(f"ravel_multi_index(): {len(rows)} rows of places for {len(dims)} dimensions")
    strides = _strides(dims, order, "ravel_multi_index")
    found = 0
    for places, size, step in zip(rows, dims, strides, strict=True):
        found = found + _within("ravel_multi_index", places, size, mode) * step
    return found


def ix_(*args: Any) -> Any:
    """Vectors, each along a dimension of its own, so that together they index a grid."""
    vectors = [array(vector) for vector in args]
    for vector in vectors:
        if len(vector.shape) != 1:
            raise ApiValueError(f"ix_(): vectors have one dimension, and a shape is {vector.shape}")
    count = len(vectors)
    return tuple([
        ops.reshape(vector, tuple([-1 if d == place else 1 for d in range(count)]))
        for place, vector in enumerate(vectors)
    ])  # fmt: skip


def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Of each place the result of the function, or the number, of the last condition that holds there; where none does
    that of one function more, or 0."""
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


def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """A function of (tensor, dimension) called with one dimension after the other; those that it takes away stay, of
    size 1."""
    a = array(a)
    rank = len(a.shape)
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        place = axis + rank if axis < 0 else axis
        found = func(a, place)
        a = found if len(found.shape) == rank else ops.expand_dims(found, place)
        if len(a.shape) != rank:
            raise ApiValueError(f"apply_over_axes(): func gave shape {found.shape} of a tensor of {rank} dimensions")
    return a
