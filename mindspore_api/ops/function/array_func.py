"""Functions made from operators that make, reshape, reorder and scatter tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.types import INT32, INT64
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.ops import index_arguments
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function_arguments import (
    axis_of,
    flattened,
    least,
    no_such,
    no_tensor,
    number_type,
    of_rank,
    part_of,
    part_sizes,
    permutation,
    reduced_axes,
    split_sizes,
    within,
)
from mspc.mindspore_api.ops.index_arguments import (
    diagonal_order,
    diagonal_places,
    diagonal_view,
    inside,
    margin_places,
    margins,
    mesh_shapes,
    mirrored,
    outside,
    outside_pairs,
    places_in,
    places_of,
    turned_plane,
    turns,
)

ANY_LENGTH = 1 << 62
"""Limit of a range without a maximum length."""


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """Return a tensor of one value, by default in the element type of a tensor of that value.

    A number that a loop counts is a tensor without dimensions.
    """
    if isinstance(fill_value, Tensor):
        return ops.broadcast_to(fill_value if dtype is None else ops.cast(fill_value, dtype), size)
    return ops.Fill()(number_type(fill_value) if dtype is None else dtype, size, fill_value)


def flatten(input: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Any:
    """Merge dimensions start_dim to end_dim, with the last index the fastest, or the first one for order "F". A tensor
    of less than two dimensions becomes a vector. Raise ValueError for another order, a dimension out of range, or
    start_dim after end_dim."""
    one = len(input.shape) < 2
    sizes = flattened("flatten", input.shape, 0 if one else start_dim, -1 if one else end_dim, order)
    if order == "F":
        turned = ops.Transpose()(input, permutation((), len(input.shape)))
        return ops.Transpose()(ops.Reshape()(turned, tuple(reversed(sizes))), permutation((), len(sizes)))
    return ops.Reshape()(input, sizes)


def squeeze(input: Any, axis: Any = None) -> Any:
    """Remove dimensions of size 1 (all, or those of `axis`)."""
    if axis is None:
        return ops.Squeeze()(input)
    return ops.Squeeze(axis)(input)


def stop_gradient(value: Any | None) -> Any:
    """Return the value without gradient; for a tuple or list, that of each element; None for None."""
    if isinstance(value, (tuple, list)):
        return tuple([stop_gradient(each) for each in value])
    return value if value is None else ops.StopGradient()(value)


def split(tensor: Any, split_size_or_sections: Any, axis: int = 0) -> Any:
    """Return parts along `axis`, a tuple: of one size, with the rest in the last one, or of the listed sizes. Raise
    ValueError if the sizes do not add up to the size of the dimension."""
    dim = axis_of("split", axis, len(tensor.shape))
    sizes = part_sizes("split", split_size_or_sections, tensor.shape, dim)
    if isinstance(split_size_or_sections, int) and sizes[0] == sizes[-1]:
        return ops.Split(dim, len(sizes))(tensor)
    return _split(tensor, sizes, dim)


def _split(tensor: Any, sizes: Any, dim: int) -> Any:
    return tuple([ops.StridedSlice()(tensor, *part_of(tensor.shape, sizes, dim, i)) for i in range(len(sizes))])


def masked_fill(input_x: Any, mask: Any, value: Any) -> Any:
    """Return `value` if the mask is true, `input_x` elsewhere; a tensor of one value is converted to the type of
    `input_x`."""
    if isinstance(value, (bool, int, float)) or value.dtype == input_x.dtype:
        return ops.MaskedFill()(input_x, mask, value)
    return ops.MaskedFill()(input_x, mask, ops.cast(value, input_x.dtype))


def strided_slice(
    input_x: Any, begin: Any, end: Any, strides: Any, begin_mask: int = 0, end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0, shrink_axis_mask: int = 0,
) -> Any:  # fmt: skip
    """Return begin[d]:end[d]:strides[d] of every dimension d."""
    strided = ops.StridedSlice(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return strided(input_x, begin, end, strides)


def slice(input_x: Any, begin: Any, size: Any) -> Any:
    """Return size[d] elements from begin[d] of every dimension d, all remaining ones for -1. Raise ValueError if there
    are fewer."""
    within("slice", input_x.shape, begin, size)
    end = [b + s if s >= 0 else n for b, s, n in zip(begin, size, input_x.shape, strict=True)]
    return ops.StridedSlice()(input_x, begin, tuple(end), (1,) * len(end))


def arange(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    """Return numbers from start up to but excluding end, by step."""
    if end is None:
        return ops.Range(ANY_LENGTH)(0, start, step, dtype)
    return ops.Range(ANY_LENGTH)(start, end, step, dtype)


def topk(input: Any, k: int, dim: Any = None, largest: bool = True, sorted: bool = True) -> Any:
    """Return (the k largest elements along `dim`, or the smallest unless `largest`, their indices as Int32); None means
    the last dimension."""
    axis = axis_of("topk", -1 if dim is None else dim, len(input.shape))
    if largest and axis == len(input.shape) - 1:
        return ops.TopK(sorted)(input, k)
    values, places = ops.TopkExt()(input, k, axis, largest, sorted)
    return values, ops.cast(places, INT32)


def t(input: TensorLike) -> Any:
    """Return a matrix transposed, or a vector or number unchanged. Raise ValueError if there are more than two
    dimensions."""
    if len(input.shape) < 2:
        return input
    of_rank("ops.t", "input", input.shape, 2)
    return ops.Transpose()(input, (1, 0))


def adjoint(x: TensorLike) -> Any:
    """Exchange the last two dimensions, and conjugate complex numbers."""
    turned = ops.swapaxes(x, -1, -2)
    return ops.Conj()(turned) if x.dtype.is_complex else turned


def require_tensors(name: str, operands: Sequence[Any]) -> None:
    """Raise TypeError for an operand that is no tensor."""
    for x in operands:
        if not hasattr(x, "shape"):
            no_tensor(name, x)


def as_dtype(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else ops.Cast()(x, dtype)


def in_shape(x: Any, shape: Any) -> Any:
    return x if x.shape == shape else ops.Reshape()(x, shape)


# Minimum number of dimensions -----------------------------------------------------------------------------


def atleast_1d(inputs: TensorLike | Sequence[Any]) -> Any:
    """Return a number as a vector, anything else unchanged; for a tuple or a list, a tuple of the results for each."""
    if isinstance(inputs, tuple | list):
        return tuple([atleast_1d(x) for x in inputs])
    require_tensors("atleast_1d", [inputs])
    return inputs if inputs.shape else ops.Reshape()(inputs, (1,))


def atleast_2d(inputs: TensorLike | Sequence[Any]) -> Any:
    """Return a number or a vector as a matrix of one row, anything else unchanged; for a tuple or a list, a tuple of
    the results for each."""
    if isinstance(inputs, tuple | list):
        return tuple([atleast_2d(x) for x in inputs])
    require_tensors("atleast_2d", [inputs])
    return inputs if len(inputs.shape) > 1 else ops.Reshape()(inputs, (1, -1))


def atleast_3d(inputs: TensorLike | Sequence[Any]) -> Any:
    """Return tensors with at least three dimensions: a vector in the middle one, a matrix in the first two; for a tuple
    or a list, each."""
    if isinstance(inputs, tuple | list):
        return tuple([atleast_3d(x) for x in inputs])
    require_tensors("atleast_3d", [inputs])
    if len(inputs.shape) > 2:
        return inputs
    return ops.Reshape()(inputs, (*inputs.shape, 1) if len(inputs.shape) == 2 else (1, -1, 1))


# Parts ----------------------------------------------------------------------------------------------------


def tensor_split(input: TensorLike, indices_or_sections: Any, axis: int = 0) -> Any:
    """Return parts along `axis`, a tuple: a number of parts, the first ones longer by one if needed, or the parts
    between the listed positions."""
    axis = axis_of("tensor_split", axis, len(input.shape))
    sizes = split_sizes("tensor_split", indices_or_sections, input.shape[axis])
    if not isinstance(indices_or_sections, int):
        return tuple([_part(input, axis, first, size) for first, size in sizes])
    return tuple([ops.StridedSlice()(input, *part_of(input.shape, sizes, axis, i)) for i in range(len(sizes))])


def _part(x: Any, axis: int, first: int, size: int) -> Any:
    return ops.StridedSlice()(x, *part_of(x.shape, (first, size), axis, 1))


def vsplit(input: TensorLike, indices_or_sections: Any) -> Any:
    """Call `tensor_split` along dimension 0, for two dimensions or more."""
    least("vsplit", "the number of dimensions", len(input.shape), 2)
    return tensor_split(input, indices_or_sections, 0)


def dsplit(input: TensorLike, indices_or_sections: Any) -> Any:
    """Call `tensor_split` along dimension 2, for three dimensions or more."""
    least("dsplit", "the number of dimensions", len(input.shape), 3)
    return tensor_split(input, indices_or_sections, 2)


def narrow(input: TensorLike, axis: int, start: int, length: int) -> Any:
    """Return `length` elements from `start` along `axis`. Raise ValueError if there is no such dimension, or it has too
    few elements."""
    rank = len(input.shape)
    axis = axis_of("narrow", axis, rank)
    begin = tuple([start if d == axis else 0 for d in range(rank)])
    sizes = tuple([length if d == axis else input.shape[d] for d in range(rank)])
    within("narrow", input.shape, begin, sizes)
    return _part(input, axis, start, length)


# Side by side ---------------------------------------------------------------------------------------------


def dstack(tensors: Sequence[Any]) -> Any:
    """Concatenate tensors along dimension 2, after `atleast_3d`."""
    require_tensors("ops.dstack", tensors)
    return ops.concat([atleast_3d(x) for x in tensors], 2)


def kron(input: TensorLike, other: TensorLike) -> Any:
    """Return every element of the input times all of the other tensor, block by block."""
    rank = max(len(input.shape), len(other.shape))
    first = (1,) * (rank - len(input.shape)) + input.shape
    second = (1,) * (rank - len(other.shape)) + other.shape
    left = ops.Reshape()(input, tuple([n for size in first for n in (size, 1)]))
    right = ops.Reshape()(other, tuple([n for size in second for n in (1, size)]))
    return ops.Reshape()(left * right, tuple([first[d] * second[d] for d in range(rank)]))


# Triangles ------------------------------------------------------------------------------------------------


def matrix_band_part(x: TensorLike, lower: int, upper: int) -> Any:
    """Return matrices with `lower` diagonals below the main one and `upper` above it, -1 for all, and 0 elsewhere."""
    below = x if lower < 0 else ops.Triu(-lower)(x)
    return below if upper < 0 else ops.Tril(upper)(below)


def argsort(input: Any, axis: int = -1, descending: bool = False) -> Any:
    """Return the indices, Int32, that sort the elements along `axis`."""
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
    """Rotate the plane of two dimensions by k quarter turns, from the first of them towards the second."""
    first, second = turned_plane("rot90", dims, len(input.shape))
    quarters = k % 4
    if quarters == 0:
        return input
    if quarters == 2:
        return ops.ReverseV2((first, second))(input)
    turned = ops.swapaxes(input, first, second)
    return ops.ReverseV2((first if quarters == 1 else second,))(turned)


def meshgrid(*inputs: Any, indexing: str = "xy") -> Any:
    """Broadcast every vector over the grid of all, a tuple; with indexing "xy" the first two dimensions are
    exchanged."""
    given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else inputs
    own, result_shape = mesh_shapes("meshgrid", [x.shape if hasattr(x, "shape") else None for x in given], indexing)
    return tuple([ops.broadcast_to(ops.reshape(given[i], own[i]), result_shape) for i in range(len(given))])


def repeat_interleave(input: Any, repeats: int, axis: Any = None) -> Any:
    """Repeat every slice along `axis`, or every element if that is None."""
    if axis is None:
        return ops.RepeatInterleaveInt()(ops.Reshape()(input, (-1,)), repeats, 0)
    return ops.RepeatInterleaveInt()(input, repeats, axis)


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Shift elements by `shifts` along `dims`, the last ones to the front; None: in the flat tensor. Raise ValueError
    if shifts and dims differ in number."""
    if dims is None:
        return ops.Reshape()(roll(ops.Reshape()(input, (-1,)), shifts, 0), input.shape)
    for axis, step in turns("roll", shifts, dims, input.shape):
        sizes = (input.shape[axis] - step, step)
        front = ops.StridedSlice()(input, *part_of(input.shape, sizes, axis, 0))
        back = ops.StridedSlice()(input, *part_of(input.shape, sizes, axis, 1))
        input = ops.Concat(axis)((back, front))
    return input


def fftshift(input: Any, dim: Any = None) -> Any:
    """Roll the elements along `dim`, None for all, so that the first one comes to the middle."""
    axes = reduced_axes("fftshift", dim, len(input.shape))
    return roll(input, tuple([input.shape[axis] // 2 for axis in axes]), axes)


def ifftshift(input: Any, dim: Any = None) -> Any:
    """Return the input of `fftshift`."""
    axes = reduced_axes("ifftshift", dim, len(input.shape))
    return roll(input, tuple([-(input.shape[axis] // 2) for axis in axes]), axes)


def gather_elements(input: Any, dim: int, index: Any) -> Any:
    """Return for each element of `index` the value of `input` at it along `dim`; along other dimensions `index` may be
    smaller."""
    rank = len(input.shape)
    dim = axis_of("gather_elements", dim, rank)
    sizes = tuple([input.shape[d] if d == dim else index.shape[d] for d in range(rank)])
    if sizes != input.shape:
        input = ops.StridedSlice()(input, (0,) * rank, sizes, (1,) * rank)
    return ops.GatherD()(input, dim, index)


def pad(input_x: Any, padding: Any, mode: str = "constant", value: Any = None) -> Any:
    """Return `input_x` with margins: pairs (before, after), beginning with the last dimension; negative ones remove
    elements.

    mode: "constant" fills them with `value` (by default 0), "reflect" mirrors the tensor, "replicate" repeats its last
    element, "circular" continues at its other end.

    Raises ValueError for another mode, or margins that do not fit.
    """
    pairs = margins("pad", padding, input_x.shape, mode, value)
    if mode == "constant":
        return _with_constant(input_x, pairs, 0 if value is None else value)
    return _inside(_with_copies(input_x, outside_pairs(pairs), mode), pairs)


def mirror_pad(input_x: TensorLike, paddings: Any, mode: str) -> Any:
    """Return the input with margins (before, after) of every dimension, mirrored: "REFLECT" without its own edge,
    "SYMMETRIC" with it; "EDGE" repeats the last element, "CIRCULAR" continues at the other end. Raise ValueError for
    another mode, or margins that do not fit."""
    kind, pairs = mirrored(mode, paddings, input_x.shape)
    return _with_copies(input_x, pairs, kind)


def _with_copies(x: Any, pairs: Any, mode: str) -> Any:
    for axis in range(len(pairs)):
        if any(pairs[axis]):
            x = ops.Gather()(x, margin_places(x.shape[axis], pairs[axis], mode), axis)
    return x


def _with_constant(x: Any, pairs: Any, value: Any) -> Any:
    x = _inside(x, pairs)
    added = outside(pairs)
    return ops.PadV3()(x, added, ops.cast(value, x.dtype)) if any(added) else x


def _inside(x: Any, pairs: Any) -> Any:
    begin, end, strides = inside(x.shape, pairs)
    if (begin, end) != ((0,) * len(pairs), x.shape):
        x = ops.StridedSlice()(x, begin, end, strides)
    return x


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Return matrices with the vectors of the last dimension as diagonals, and 0 elsewhere: `offset` above the main
    one, or below. Raise ValueError if dim1 and dim2, the dimensions of the matrices in the result, are equal."""
    *rest, count = input.shape
    size = count + abs(offset)
    wide = pad(input, (0, size - count))
    lines = ops.Reshape()(wide, (*rest, size, 1) if offset >= 0 else (*rest, 1, size))
    square = ops.Triu(offset)(ops.Tril(offset)(ops.BroadcastTo((*rest, size, size))(lines)))
    order = diagonal_order("diag_embed", len(square.shape), dim1, dim2)
    return square if order == tuple(range(len(order))) else ops.Transpose()(square, places_in(order))


def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the diagonal of two dimensions, as the last one: `offset` above the main one, or below. Outside of a
    network it is a view. Raise ValueError if the dimensions are equal."""
    return copied_diagonal(input, offset, dim1, dim2)


diagonal.__dict__["at_once"] = diagonal_view


def copied_diagonal(input: Any, offset: int, dim1: int, dim2: int) -> Any:
    """Return a copy of the elements of `diagonal`."""
    order = diagonal_order("diagonal", len(input.shape), dim1, dim2)
    turned = ops.Transpose()(input, order)
    *rest, rows, columns = turned.shape
    flat = ops.Reshape()(turned, (*rest, rows * columns))
    return ops.Gather()(flat, diagonal_places(rows, columns, offset), len(rest))


def along_dimension(x: Any, axis: int, index: Any, src: Any, adds: bool = False) -> Any:
    """Return x with every element of `src` at its `index` along `axis`, and at its own position along other dimensions;
    with `adds` it is added to the values in x. `src` may be larger than `index`; the shape of `index` is used."""
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
    """Return the input with every element of `updates` at its `indices` along `axis`; for the reduction "add" added to
    the values in the input. Raise ValueError for another reduction."""
    if reduction not in ("none", "add"):
        no_such("tensor_scatter_elements", "reduction", reduction, "'none' or 'add'")
    return along_dimension(input_x, axis, indices, updates, reduction == "add")


def take(input: TensorLike, index: TensorLike) -> Any:
    """Return the elements of the flat input at `index`, counted from the end if it is negative."""
    places = ops.Select()(ops.Less()(index, 0), index + input.size, index)
    return ops.Gather()(ops.Reshape()(input, (-1,)), places, 0)


def index_fill(x: TensorLike, axis: int, index: TensorLike, value: Any) -> Any:
    """Return the input with the slices at `index` along `axis` filled with one value."""
    first, last = axis_of("index_fill", axis, len(x.shape)), len(x.shape) - 1
    turned = ops.swapaxes(x, 0, first) if last > 0 else x
    rows = ops.broadcast_to(ops.cast(value, x.dtype), (*index.shape, *turned.shape[1:]))
    places = ops.ExpandDims()(ops.Select()(ops.Less()(index, 0), index + turned.shape[0], index), -1)
    found = ops.TensorScatterUpdate()(turned, places, rows)
    return ops.swapaxes(found, 0, first) if last > 0 else found


def index_add(
    x: TensorLike, indices: TensorLike, y: TensorLike, axis: int, use_lock: bool = True, check_index_bound: bool = True
) -> Any:
    """Return x plus the slices of y at `indices` along `axis`. A Parameter x is updated.

    Additions are sequential and indices are checked, whatever use_lock and check_index_bound say.
    """
    first = axis_of("index_add", axis, len(x.shape))
    turned, rows = (ops.swapaxes(x, 0, first), ops.swapaxes(y, 0, first)) if first else (x, y)
    found = ops.TensorScatterAdd()(turned, ops.ExpandDims()(indices, -1), rows)
    found = ops.swapaxes(found, 0, first) if first else found
    return ops.assign(x, found) if isinstance(x, Parameter) else found


# Slices and diagonals -------------------------------------------------------------------------------------


def diagonal_scatter(input: TensorLike, src: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the input with `src` on a diagonal of two dimensions: `offset` above the main one, or below."""
    order = diagonal_order("diagonal_scatter", len(input.shape), dim1, dim2)
    turned = ops.Transpose()(input, order)
    rows, columns = turned.shape[-2:]
    lines = ops.Reshape()(turned, (-1, rows * columns))
    places = diagonal_places(rows, columns, offset)
    values = ops.Transpose()(ops.Reshape()(ops.cast(src, input.dtype), (-1, places.shape[0])), (1, 0))
    found = ops.TensorScatterUpdate()(ops.Transpose()(lines, (1, 0)), ops.Reshape()(places, (-1, 1)), values)
    return ops.Transpose()(ops.Reshape()(ops.Transpose()(found, (1, 0)), turned.shape), places_in(order))


def reverse_sequence(x: TensorLike, seq_lengths: TensorLike, seq_dim: int, batch_dim: int = 0) -> Any:
    """Reverse the first seq_lengths[b] elements along seq_dim, for every b along batch_dim."""
    rank = len(x.shape)
    along, batch = axis_of("reverse_sequence", seq_dim, rank), axis_of("reverse_sequence", batch_dim, rank)
    places = ops.cast(places_of(x.shape, along), INT64)
    shape = tuple([x.shape[d] if d == batch else 1 for d in range(rank)])
    count = ops.broadcast_to(ops.Reshape()(ops.cast(seq_lengths, INT64), shape), x.shape)
    return ops.GatherD()(x, along, ops.Select()(ops.Less()(places, count), count - 1 - places, places))


def masked_select(input: TensorLike, mask: TensorLike) -> Any:
    """Return the elements with a true mask, which must be known; a vector."""
    shape, places = index_arguments.masked_select(mask, input.shape)
    return ops.Gather()(ops.Reshape()(ops.broadcast_to(input, shape), (-1,)), places, 0)


def bincount(input: TensorLike, weights: Any = None, minlength: int = 0) -> Any:
    """Return the number of occurrences of each integer from 0 to the largest in a vector, or up to minlength, or the
    sums of the weights at its positions; Float32."""
    places, count = index_arguments.bincount(input, minlength)
    found = ops.ones(input.shape) if weights is None else weights
    return ops.UnsortedSegmentSum()(found, places, count)


def sequence_mask(lengths: TensorLike, maxlen: int | None = None) -> Any:
    """Return [..., maxlen], true at the first positions up to each length; maxlen: by default the greatest length,
    which must be known."""
    size = index_arguments.sequence_mask(lengths) if maxlen is None else maxlen
    return ops.Less()(ops.arange(size), ops.ExpandDims()(lengths, -1))
