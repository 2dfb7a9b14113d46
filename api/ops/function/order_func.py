"""Functions that choose, sort and turn round elements, and that put them into or take them from a diagonal."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import axis_of, no_such, part_of
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
from mspc.api.ops.index_arguments import nonzero as places_known_now
from mspc.api.ops.method_table import tensor_method
from mspc.ir.types import INT64


def sort(input_x: Any, axis: int = -1, descending: bool = False) -> Any:
    """(elements in order along `axis`, the places that they come from as Int32)."""
    return ops.Sort(axis, descending)(input_x)


def argsort(input: Any, axis: int = -1, descending: bool = False) -> Any:
    """The places that the elements come from when they stand in order along `axis`, Int32."""
    _, places = ops.Sort(axis, descending)(input)
    return places


def max(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """(the greatest elements along `axis`, their places, Int64); over all elements the place is 0.

    initial: the least that an element counts as. where: elements elsewhere count as `initial`.

    Raises:
        ValueError: `where` without `initial`.
    """
    return _extremum(ops.ArgMaxWithValue, _chosen("max", ops.Maximum(), input, initial, where), axis, keepdims)


def min(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """(the least elements along `axis`, their places, Int64); over all elements the place is 0.

    initial: the greatest that an element counts as. where: elements elsewhere count as `initial`.

    Raises:
        ValueError: `where` without `initial`.
    """
    return _extremum(ops.ArgMinWithValue, _chosen("min", ops.Minimum(), input, initial, where), axis, keepdims)


def _chosen(name: str, bound: Any, x: Any, initial: Any, where: Any) -> Any:
    if initial is None:
        if where is not None:
            no_such(name, "initial", None, "a number, which where needs")
        return x
    bounded = bound(x, ops.cast(initial, x.dtype))
    return bounded if where is None else ops.Select()(where, bounded, ops.cast(initial, x.dtype))


def _extremum(kind: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    if axis is None:
        _, value = kind(0, False)(ops.reshape(x, (-1,)))
        return value, ops.zeros((), INT64)
    places, values = kind(axis, keepdims)(x)
    return values, ops.cast(places, INT64)


@tensor_method()
def fliplr(input: Any) -> Any:
    """Elements turned round along dimension 1."""
    return ops.ReverseV2((1,))(input)


@tensor_method()
def flipud(input: Any) -> Any:
    """Elements turned round along dimension 0."""
    return ops.ReverseV2((0,))(input)


@tensor_method()
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
    own, whole = mesh_shapes("meshgrid", [x.shape if hasattr(x, "shape") else None for x in given], indexing)
    return tuple([ops.broadcast_to(ops.reshape(given[i], own[i]), whole) for i in range(len(given))])


def repeat_interleave(input: Any, repeats: int, axis: Any = None) -> Any:
    """Every slice along `axis` repeated, every element where that is None."""
    if axis is None:
        return ops.RepeatInterleaveInt()(ops.Reshape()(input, (-1,)), repeats, 0)
    return ops.RepeatInterleaveInt()(input, repeats, axis)


def repeat_elements(x: Any, rep: int, axis: int = 0) -> Any:
    """Every slice along `axis` repeated."""
    return ops.RepeatInterleaveInt()(x, rep, axis)


@tensor_method()
def unbind(input: Any, dim: int = 0) -> Any:
    """The slices along a dimension, a tuple."""
    return ops.Unstack(dim)(input)


def unstack(input_x: Any, axis: int = 0) -> Any:
    """The slices along a dimension, a tuple."""
    return ops.Unstack(axis)(input_x)


@tensor_method()
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


@tensor_method()
def gather_elements(input: Any, dim: int, index: Any) -> Any:
    """Element by element the value of `input` at `index` along `dim`; along others `index` may be smaller."""
    rank = len(input.shape)
    dim = axis_of("gather_elements", dim, rank)
    sizes = tuple([input.shape[d] if d == dim else index.shape[d] for d in range(rank)])
    if sizes != input.shape:
        input = ops.StridedSlice()(input, (0,) * rank, sizes, (1,) * rank)
    return ops.GatherD()(input, dim, index)


def gather_d(x: Any, dim: int, index: Any) -> Any:
    """gather_elements."""
    return gather_elements(x, dim, index)


def pad(input_x: Any, padding: Any, mode: str = "constant", value: Any = None) -> Any:
    """`input_x` with margins: pairs (before, after), that of the last dimension first; negative ones cut elements off.

    mode: "constant" fills them with `value` (0 unless given), "reflect" mirrors the tensor, "replicate" repeats its
    last element, "circular" goes on at its other end.

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


@tensor_method()
def diag(input: Any) -> Any:
    """A tensor of twice as many dimensions, whose diagonal is `input`, and 0 elsewhere."""
    return ops.Reshape()(diag_embed(ops.Reshape()(input, (-1,))), (*input.shape, *input.shape))


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


@tensor_method()
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


@tensor_method()
def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
    """Places of the elements other than 0, which must be known at compile time, Int64: one row each, or for as_tuple
    one tensor a dimension."""
    return places_known_now(input, as_tuple)
