"""Functions that choose, sort and turn round elements, and that put them into or take them from a diagonal."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import axis_of, part_of
from mspc.api.ops.index_arguments import (
    diagonal_order,
    diagonal_places,
    inside,
    margin_places,
    margins,
    outside,
    places_in,
    turns,
)
from mspc.api.ops.index_arguments import nonzero as places_known_now
from mspc.api.ops.method_table import tensor_method


@tensor_method()
def sort(input_x: Any, axis: int = -1, descending: bool = False) -> Any:
    """(elements in order along `axis`, the places that they come from as Int32)."""
    return ops.Sort(axis, descending)(input_x)


@tensor_method()
def argsort(input: Any, axis: int = -1, descending: bool = False) -> Any:
    """The places that the elements come from when they stand in order along `axis`, Int32."""
    _, places = ops.Sort(axis, descending)(input)
    return places


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


gather_d = gather_elements


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
    for d in range(len(pairs)):
        if pairs[d] != (0, 0):
            input_x = ops.Gather()(input_x, margin_places(mode, input_x.shape[d], pairs[d]), d)
    return input_x


def _with_constant(x: Any, pairs: Any, value: Any) -> Any:
    begin, end, strides = inside(x.shape, pairs)
    if (begin, end) != ((0,) * len(pairs), x.shape):
        x = ops.StridedSlice()(x, begin, end, strides)
    added = outside(pairs)
    return ops.PadV3()(x, added, ops.cast(value, x.dtype)) if any(added) else x


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
