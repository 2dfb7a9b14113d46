"""These functions give a tensor other dimensions: more of them, parts along them, and tensors side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of, least, no_tensor, of_rank, part_of, within
from mspc.api.ops.index_arguments import chosen_places
from mspc.api.ops.product_arguments import split_sizes


def t(input: TensorLike) -> Any:
    """A matrix transposed; a vector or a number as it is.

    Raises:
        ValueError: there are more dimensions than two.
    """
    if len(input.shape) < 2:
        return input
    of_rank("ops.t", "input", input.shape, 2)
    return ops.Transpose()(input, (1, 0))


def adjoint(x: TensorLike) -> Any:
    """The last two dimensions exchanged, and complex numbers conjugated."""
    turned = ops.swapaxes(x, -1, -2)
    return ops.Conj()(turned) if x.dtype.is_complex else turned


# At least so many dimensions ------------------------------------------------------------------------------


def atleast_1d(inputs: TensorLike | Sequence[Any]) -> Any:
    """A number as a vector, anything else as it is; of a tuple or a list each, as a tuple."""
    if isinstance(inputs, tuple | list):
        return tuple([atleast_1d(x) for x in inputs])
    if not hasattr(inputs, "shape"):
        no_tensor("atleast_1d", inputs)
    return inputs if inputs.shape else ops.Reshape()(inputs, (1,))


def atleast_2d(inputs: TensorLike | Sequence[Any]) -> Any:
    """A number or a vector as a matrix of one row, anything else as it is; of a tuple or a list each, as a tuple."""
    if isinstance(inputs, tuple | list):
        return tuple([atleast_2d(x) for x in inputs])
    if not hasattr(inputs, "shape"):
        no_tensor("atleast_2d", inputs)
    return inputs if len(inputs.shape) > 1 else ops.Reshape()(inputs, (1, -1))


def atleast_3d(inputs: TensorLike | Sequence[Any]) -> Any:
    """Three dimensions: a vector is in the middle one, a matrix in the first two; of a tuple or a list each."""
    if isinstance(inputs, tuple | list):
        return tuple([atleast_3d(x) for x in inputs])
    if not hasattr(inputs, "shape"):
        no_tensor("atleast_3d", inputs)
    if len(inputs.shape) > 2:
        return inputs
    return ops.Reshape()(inputs, (*inputs.shape, 1) if len(inputs.shape) == 2 else (1, -1, 1))


# Parts ----------------------------------------------------------------------------------------------------


def tensor_split(input: TensorLike, indices_or_sections: Any, axis: int = 0) -> Any:
    """Parts along `axis`, a tuple: so many, the first ones longer by one, or between the places that are listed."""
    axis = axis_of("tensor_split", axis, len(input.shape))
    sizes = split_sizes("tensor_split", indices_or_sections, input.shape[axis])
    if not isinstance(indices_or_sections, int):
        return tuple([_part(input, axis, first, size) for first, size in sizes])
    return tuple([ops.StridedSlice()(input, *part_of(input.shape, sizes, axis, i)) for i in range(len(sizes))])


def _part(x: Any, axis: int, first: int, size: int) -> Any:
    return ops.StridedSlice()(x, *part_of(x.shape, (first, size), axis, 1))


def vsplit(input: TensorLike, indices_or_sections: Any) -> Any:
    """`tensor_split` along dimension 0, of two dimensions or more."""
    least("vsplit", "the number of dimensions", len(input.shape), 2)
    return tensor_split(input, indices_or_sections, 0)


def dsplit(input: TensorLike, indices_or_sections: Any) -> Any:
    """`tensor_split` along dimension 2, of three dimensions or more."""
    least("dsplit", "the number of dimensions", len(input.shape), 3)
    return tensor_split(input, indices_or_sections, 2)


def narrow(input: TensorLike, axis: int, start: int, length: int) -> Any:
    """`length` elements from `start` along `axis`.

    Raises:
        ValueError: there is no such dimension, or there are not so many elements.
    """
    rank = len(input.shape)
    axis = axis_of("narrow", axis, rank)
    begin = tuple([start if d == axis else 0 for d in range(rank)])
    sizes = tuple([length if d == axis else input.shape[d] for d in range(rank)])
    within("narrow", input.shape, begin, sizes)
    return _part(input, axis, start, length)


# Side by side ---------------------------------------------------------------------------------------------


def dstack(tensors: Sequence[Any]) -> Any:
    """Tensors behind one another: along dimension 2, with as many dimensions as `atleast_3d` gives them."""
    for x in tensors:
        if not hasattr(x, "shape"):
            no_tensor("ops.dstack", x)
    return ops.concat([atleast_3d(x) for x in tensors], 2)


def block_diag(*inputs: Any) -> Any:
    """A matrix with these matrices along its diagonal and 0 elsewhere; vectors are rows."""
    blocks = [ops.atleast_2d(x) for x in inputs]
    width, before, rows = sum([x.shape[1] for x in blocks]), 0, []
    for x in blocks:
        of_rank("block_diag", "input", x.shape, 2)
        rows = [*rows, ops.pad(x, (before, width - before - x.shape[1]))]
        before = before + x.shape[1]
    return ops.concat(rows, 0)


def cartesian_prod(*inputs: Any) -> Any:
    """Every choice of one element of each vector, as rows; of one vector alone itself."""
    if len(inputs) == 1:
        return inputs[0]
    return ops.stack([ops.Reshape()(x, (-1,)) for x in ops.meshgrid(*inputs, indexing="ij")], -1)


def combinations(input: TensorLike, r: int = 2, with_replacement: bool = False) -> Any:
    """Every choice of r elements of a vector in their order, as rows; with_replacement: an element may come again."""
    of_rank("combinations", "input", input.shape, 1)
    return ops.Gather()(input, chosen_places("combinations", input.shape[0], r, with_replacement), 0)


def kron(input: TensorLike, other: TensorLike) -> Any:
    """Every element of the input times all of the other tensor, block by block."""
    rank = max(len(input.shape), len(other.shape))
    first = (1,) * (rank - len(input.shape)) + input.shape
    second = (1,) * (rank - len(other.shape)) + other.shape
    left = ops.Reshape()(input, tuple([n for size in first for n in (size, 1)]))
    right = ops.Reshape()(other, tuple([n for size in second for n in (1, size)]))
    return ops.Reshape()(left * right, tuple([first[d] * second[d] for d in range(rank)]))


# Triangles ------------------------------------------------------------------------------------------------


def matrix_band_part(x: TensorLike, lower: int, upper: int) -> Any:
    """Matrices with so many diagonals below the main one and above it, -1 for all, and 0 elsewhere."""
    below = x if lower < 0 else ops.Triu(-lower)(x)
    return below if upper < 0 else ops.Tril(upper)(below)


def vander(x: TensorLike, N: int | None = None) -> Any:
    """The powers N - 1 to 0 of every element of a vector, as rows; N: how many elements there are unless given."""
    of_rank("vander", "x", x.shape, 1)
    count = x.shape[0] if N is None else N
    return ops.stack([ops.cast(ops.Pow()(x, count - 1 - i), x.dtype) for i in range(count)], -1)
