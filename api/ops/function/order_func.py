"""These functions choose, sort and turn round elements, and put them into or take them from a diagonal."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.function_arguments import axis_of, no_such, part_of
from mspc.api.ops.index_arguments import (
    diagonal_order,
    diagonal_places,
    inside,
    margins,
    mesh_shapes,
    outside,
    outside_pairs,
    places_in,
    turned_plane,
    turns,
)
from mspc.ir.types import INT64


def argsort(input: Any, axis: int = -1, descending: bool = False) -> Any:
    """The places that the elements come from when they are in order along `axis`, Int32."""
    _, places = ops.Sort(axis, descending)(input)
    return places


def chosen_by(name: str, bound: Any, x: Any, initial: Any, where: Any) -> Any:
    if initial is None:
        if where is not None:
            no_such(name, "initial", None, "a number, which where needs")
        return x
    bounded = bound(x, ops.cast(initial, x.dtype))
    return bounded if where is None else ops.Select()(where, bounded, ops.cast(initial, x.dtype))


def extremum(kind: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    if axis is None:
        _, value = kind(0, False)(ops.reshape(x, (-1,)))
        return value, ops.zeros((), INT64)
    places, values = kind(axis, keepdims)(x)
    return values, ops.cast(places, INT64)


def rot90(input: Any, k: int, dims: Any) -> Any:
    """The plane of two dimensions turned by k quarters, from the first of them towards the second."""
    first, second = turned_plane("rot90", dims, len(input.shape))
    quarters = k % 4
    if quarters == 0:
        return input
    if quarters == 2:
        return ops.ReverseV2((first, second))(input)
    turned = ops.swapaxes(input, first, second)
    return ops.ReverseV2((first if quarters == 1 else second,))(turned)


def meshgrid(*inputs: Any, indexing: str = "xy") -> Any:
    """Every vector spread over the grid of all, a tuple; with indexing "xy" the first two dimensions change places."""
    given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else inputs
    own, result_shape = mesh_shapes("meshgrid", [x.shape if hasattr(x, "shape") else None for x in given], indexing)
    return tuple([ops.broadcast_to(ops.reshape(given[i], own[i]), result_shape) for i in range(len(given))])


def repeat_interleave(input: Any, repeats: int, axis: Any = None) -> Any:
    """Every slice along `axis` repeated, every element where that is None."""
    if axis is None:
        return ops.RepeatInterleaveInt()(ops.Reshape()(input, (-1,)), repeats, 0)
    return ops.RepeatInterleaveInt()(input, repeats, axis)


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Elements moved on by `shifts` places along `dims`, the last ones to the front; None: in their order.

    Raises:
        ValueError: shifts and dims are not as many.
    """
    if dims is None:
        return ops.Reshape()(roll(ops.Reshape()(input, (-1,)), shifts, 0), input.shape)
    for axis, step in turns("roll", shifts, dims, input.shape):
        sizes = (input.shape[axis] - step, step)
        front = ops.StridedSlice()(input, *part_of(input.shape, sizes, axis, 0))
        back = ops.StridedSlice()(input, *part_of(input.shape, sizes, axis, 1))
        input = ops.Concat(axis)((back, front))
    return input


def gather_elements(input: Any, dim: int, index: Any) -> Any:
    """Element by element the value of `input` at `index` along `dim`; along others `index` may be smaller."""
    rank = len(input.shape)
    dim = axis_of("gather_elements", dim, rank)
    sizes = tuple([input.shape[d] if d == dim else index.shape[d] for d in range(rank)])
    if sizes != input.shape:
        input = ops.StridedSlice()(input, (0,) * rank, sizes, (1,) * rank)
    return ops.GatherD()(input, dim, index)


def pad(input_x: Any, padding: Any, mode: str = "constant", value: Any = None) -> Any:
    """`input_x` with margins: pairs (before, after), that of the last dimension first; negative ones take elements off.

    mode: "constant" fills them with `value` (0 unless given), "reflect" mirrors the tensor, "replicate" repeats its
    last element, "circular" continues at its other end.

    Raises:
        ValueError: another mode, or margins that do not fit.
    """
    pairs = margins("pad", padding, input_x.shape, mode, value)
    if mode == "constant":
        return _with_constant(input_x, pairs, 0 if value is None else value)
    added = outside_pairs(pairs)
    if any(map(any, added)):
        input_x = ops.MirrorPad({"replicate": "edge"}.get(mode, mode))(input_x, added)
    return _inside(input_x, pairs)


def _with_constant(x: Any, pairs: Any, value: Any) -> Any:
    x = _inside(x, pairs)
    added = outside(pairs)
    return ops.PadV3()(x, added, ops.cast(value, x.dtype)) if any(added) else x


def _inside(x: Any, pairs: Any) -> Any:
    """What negative margins leave."""
    begin, end, strides = inside(x.shape, pairs)
    if (begin, end) != ((0,) * len(pairs), x.shape):
        x = ops.StridedSlice()(x, begin, end, strides)
    return x


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices whose diagonals are the vectors of the last dimension, and 0 elsewhere: `offset` places above the main
    one, or below.

    Raises:
        ValueError: the dimensions dim1 and dim2, which the matrices have in the result, are one.
    """
    *rest, count = input.shape
    size = count + abs(offset)
    wide = pad(input, (0, size - count))
    lines = ops.Reshape()(wide, (*rest, size, 1) if offset >= 0 else (*rest, 1, size))
    square = ops.Triu(offset)(ops.Tril(offset)(ops.BroadcastTo((*rest, size, size))(lines)))
    order = diagonal_order("diag_embed", len(square.shape), dim1, dim2)
    return square if order == tuple(range(len(order))) else ops.Transpose()(square, places_in(order))


def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The diagonal of two dimensions, as the last one: `offset` places above the main one, or below.

    Raises:
        ValueError: the dimensions are one.
    """
    order = diagonal_order("diagonal", len(input.shape), dim1, dim2)
    turned = ops.Transpose()(input, order)
    *rest, rows, columns = turned.shape
    flat = ops.Reshape()(turned, (*rest, rows * columns))
    return ops.Gather()(flat, diagonal_places(rows, columns, offset), len(rest))
