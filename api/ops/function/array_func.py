"""These functions make tensors, and change the shape, the element type or the place of elements."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.common.tensor import Tensor
from mspc.api.ops.function_arguments import (
    axis_of,
    flattened,
    number_type,
    part_of,
    part_sizes,
    permutation,
    within,
)
from mspc.ir.types import INT32

ANY_LENGTH = 1 << 62
"""Of a range whose length nobody limits."""


def size(input_x: Any) -> Any:
    """Number of elements, an int."""
    return input_x.size


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A tensor of one value, in the element type of a tensor of that value unless `dtype` is given.

    A number that a loop counts is a tensor without dimensions.
    """
    if isinstance(fill_value, Tensor):
        return ops.broadcast_to(fill_value if dtype is None else ops.cast(fill_value, dtype), size)
    return ops.Fill()(number_type(fill_value) if dtype is None else dtype, size, fill_value)


def dtype(input_x: Any) -> Any:
    """The element type."""
    return input_x.dtype


def flatten(input: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Any:
    """Dimensions start_dim to end_dim made one, the last index the fastest, or the first one for order "F"; less than
    two dimensions are made one.

    Raises:
        ValueError: another order, a dimension outside, or start_dim behind end_dim.
    """
    one = len(input.shape) < 2
    sizes = flattened("flatten", input.shape, 0 if one else start_dim, -1 if one else end_dim, order)
    if order == "F":
        turned = ops.Transpose()(input, permutation((), len(input.shape)))
        return ops.Transpose()(ops.Reshape()(turned, tuple(reversed(sizes))), permutation((), len(sizes)))
    return ops.Reshape()(input, sizes)


def squeeze(input: Any, axis: Any = None) -> Any:
    """Without dimensions of size 1 (all, or those of `axis`)."""
    if axis is None:
        return ops.Squeeze()(input)
    return ops.Squeeze(axis)(input)


def stop_gradient(value: Any | None) -> Any:
    """The value; differentiation does not pass. Of a tuple that of each element; None stays None."""
    if isinstance(value, (tuple, list)):
        return tuple([stop_gradient(each) for each in value])
    return value if value is None else ops.StopGradient()(value)


def split(tensor: Any, split_size_or_sections: Any, axis: int = 0) -> Any:
    """Parts along `axis`, a tuple: of one size, the last one of what is left, or of the sizes listed.

    Raises:
        ValueError: the sizes do not add up to the size of the dimension.
    """
    dim = axis_of("split", axis, len(tensor.shape))
    sizes = part_sizes("split", split_size_or_sections, tensor.shape, dim)
    if isinstance(split_size_or_sections, int) and sizes[0] == sizes[-1]:
        return ops.Split(dim, len(sizes))(tensor)
    return _split(tensor, sizes, dim)


def _split(tensor: Any, sizes: Any, dim: int) -> Any:
    return tuple([ops.StridedSlice()(tensor, *part_of(tensor.shape, sizes, dim, i)) for i in range(len(sizes))])


def masked_fill(input_x: Any, mask: Any, value: Any) -> Any:
    """`value` where the mask is true, `input_x` elsewhere; a tensor of one value is taken in the type of `input_x`."""
    if isinstance(value, (bool, int, float)) or value.dtype == input_x.dtype:
        return ops.MaskedFill()(input_x, mask, value)
    return ops.MaskedFill()(input_x, mask, ops.cast(value, input_x.dtype))


def strided_slice(
    input_x: Any, begin: Any, end: Any, strides: Any, begin_mask: int = 0, end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0, shrink_axis_mask: int = 0,
) -> Any:  # fmt: skip
    """begin[d]:end[d]:strides[d] of every dimension d."""
    strided = ops.StridedSlice(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return strided(input_x, begin, end, strides)


def slice(input_x: Any, begin: Any, size: Any) -> Any:
    """size[d] elements from begin[d] of every dimension d, all that are left for -1.

    Raises:
        ValueError: there are not so many.
    """
    within("slice", input_x.shape, begin, size)
    end = [b + s if s >= 0 else n for b, s, n in zip(begin, size, input_x.shape, strict=True)]
    return ops.StridedSlice()(input_x, begin, tuple(end), (1,) * len(end))


def arange(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    """Numbers from start up to end, without end, by step."""
    if end is None:
        return ops.Range(ANY_LENGTH)(0, start, step, dtype)
    return ops.Range(ANY_LENGTH)(start, end, step, dtype)


def topk(input: Any, k: int, dim: Any = None, largest: bool = True, sorted: bool = True) -> Any:
    """(the k largest elements along `dim`, the smallest unless `largest`, their places as Int32); None: along the last
    dimension."""
    axis = axis_of("topk", -1 if dim is None else dim, len(input.shape))
    if largest and axis == len(input.shape) - 1:
        return ops.TopK(sorted)(input, k)
    values, places = ops.TopkExt()(input, k, axis, largest, sorted)
    return values, ops.cast(places, INT32)
