"""These functions put elements at places: along a dimension, into slices and diagonals, and into parameters."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.common.parameter import Parameter
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of, no_such
from mspc.api.ops.index_arguments import diagonal_order, diagonal_places, places_in, places_of, slice_places
from mspc.ir.types import INT32, INT64


def along_dimension(x: Any, axis: int, index: Any, src: Any, adds: bool = False) -> Any:
    """x with every element of `src` at the place that `index` names along `axis`, and at its own along others; with
    `adds` it is added to what is there. `src` may be larger than `index`, whose shape counts."""
    rank = len(x.shape)
    axis = axis_of("scatter", axis, rank)
    if not hasattr(src, "shape"):
        src = ops.full(index.shape, src, dtype=x.dtype)
    if src.shape != index.shape:
        src = ops.StridedSlice()(src, (0,) * rank, index.shape, (1,) * rank)
    if index.dtype not in (INT32, INT64):
        index = ops.cast(index, INT64)
    return ops.ScatterElements(axis, adds)(x, index, ops.cast(src, x.dtype))


def tensor_scatter_elements(
    input_x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0, reduction: str = "none"
) -> Any:
    """The input with every element of `updates` at the place that `indices` names along `axis`; for the reduction "add"
    added to what is there.

    Raises:
        ValueError: another reduction.
    """
    if reduction not in ("none", "add"):
        no_such("tensor_scatter_elements", "reduction", reduction, "'none' or 'add'")
    return along_dimension(input_x, axis, indices, updates, reduction == "add")


def take(input: TensorLike, index: TensorLike) -> Any:
    """The elements at `index` among all in their order, counted from the end where it is negative."""
    places = ops.Select()(ops.Less()(index, 0), index + input.size, index)
    return ops.Gather()(ops.Reshape()(input, (-1,)), places, 0)


def index_fill(x: TensorLike, axis: int, index: TensorLike, value: Any) -> Any:
    """The input with the slices along `axis` that `index` names filled with one value."""
    first, last = axis_of("index_fill", axis, len(x.shape)), len(x.shape) - 1
    turned = ops.swapaxes(x, 0, first) if last > 0 else x
    rows = ops.broadcast_to(ops.cast(value, x.dtype), (*index.shape, *turned.shape[1:]))
    places = ops.ExpandDims()(ops.Select()(ops.Less()(index, 0), index + turned.shape[0], index), -1)
    found = ops.TensorScatterUpdate()(turned, places, rows)
    return ops.swapaxes(found, 0, first) if last > 0 else found


def index_add(
    x: TensorLike, indices: TensorLike, y: TensorLike, axis: int, use_lock: bool = True, check_index_bound: bool = True
) -> Any:
    """x plus the slices of y at the places along `axis` that `indices` names. A Parameter x holds that from then on.

    Additions happen one after another, and places are checked, whatever use_lock and check_index_bound say.
    """
    first = axis_of("index_add", axis, len(x.shape))
    turned, rows = ops.swapaxes(x, 0, first), ops.swapaxes(y, 0, first)
    found = ops.swapaxes(ops.TensorScatterAdd()(turned, ops.ExpandDims()(indices, -1), rows), 0, first)
    return ops.assign(x, found) if isinstance(x, Parameter) else found


# Slices and diagonals -------------------------------------------------------------------------------------


def select_scatter(input: TensorLike, src: TensorLike, axis: int, index: int) -> Any:
    """The input with `src` in place of its slice `index` along `axis`."""
    axis = axis_of("select_scatter", axis, len(input.shape))
    place = index + input.shape[axis] if index < 0 else index
    return slice_scatter(input, ops.ExpandDims()(src, axis), axis, place, place + 1)


def slice_scatter(
    input: TensorLike, src: TensorLike, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """The input with `src` in place of start:end:step along `axis`."""
    axis = axis_of("slice_scatter", axis, len(input.shape))
    places = slice_places("slice_scatter", input.shape[axis], src.shape, axis, start, end, step)
    rows = ops.swapaxes(ops.cast(src, input.dtype), 0, axis)
    return ops.swapaxes(ops.TensorScatterUpdate()(ops.swapaxes(input, 0, axis), places, rows), 0, axis)


def diagonal_scatter(input: TensorLike, src: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The input with `src` on a diagonal of two dimensions: `offset` places above the main one, or below."""
    order = diagonal_order("diagonal_scatter", len(input.shape), dim1, dim2)
    turned = ops.Transpose()(input, order)
    rows, columns = turned.shape[-2:]
    lines = ops.Reshape()(turned, (-1, rows * columns))
    places = diagonal_places(rows, columns, offset)
    values = ops.Transpose()(ops.Reshape()(ops.cast(src, input.dtype), (-1, places.shape[0])), (1, 0))
    found = ops.TensorScatterUpdate()(ops.Transpose()(lines, (1, 0)), ops.Reshape()(places, (-1, 1)), values)
    return ops.Transpose()(ops.Reshape()(ops.Transpose()(found, (1, 0)), turned.shape), places_in(order))


def reverse_sequence(x: TensorLike, seq_lengths: TensorLike, seq_dim: int, batch_dim: int = 0) -> Any:
    """The first seq_lengths[b] elements along seq_dim in reverse order, of every b along batch_dim."""
    rank = len(x.shape)
    along, batch = axis_of("reverse_sequence", seq_dim, rank), axis_of("reverse_sequence", batch_dim, rank)
    places = ops.cast(places_of(x.shape, along), INT64)
    shape = tuple([x.shape[d] if d == batch else 1 for d in range(rank)])
    count = ops.broadcast_to(ops.Reshape()(ops.cast(seq_lengths, INT64), shape), x.shape)
    return ops.GatherD()(x, along, ops.Select()(ops.Less()(places, count), count - 1 - places, places))
