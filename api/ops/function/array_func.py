"""Functions that make tensors, and that change the shape, the element type or the place of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import (
    axis_of,
    chunk_size,
    exchanged,
    flattened,
    number_type,
    part_of,
    part_sizes,
    permutation,
    within,
)
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.index_arguments import tensor_of_numbers
from mspc.api.ops.method_table import tensor_method
from mspc.ir.types import FLOAT32, INT32


def shape(input_x: Any) -> Any:
    """The shape, a tuple of ints."""
    return input_x.shape


def rank(input_x: Any) -> Any:
    """Number of dimensions, an int."""
    return len(input_x.shape)


def size(input_x: Any) -> Any:
    """Number of elements, an int."""
    return input_x.size


@tensor_method("numel", "nelement")
def numel(input: TensorLike) -> Any:
    """Number of elements, an int."""
    return input.size


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


@tensor_method()
def swapaxes(input: Any, axis0: int, axis1: int) -> Any:
    """Two dimensions exchanged."""
    return ops.Transpose()(input, exchanged("swapaxes", len(input.shape), axis0, axis1))


@tensor_method()
def squeeze(input: Any, axis: Any = None) -> Any:
    """Without dimensions of size 1 (all, or those of `axis`)."""
    if axis is None:
        return ops.Squeeze()(input)
    return ops.Squeeze(axis)(input)


def concat(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one after another along `axis`."""
    return ops.Concat(axis)(tensors)


def cat(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one after another along `axis`."""
    return ops.Concat(axis)(tensors)


def tuple_len(values: Sequence[Any]) -> int:
    """How many there are in a tuple."""
    return len(values)


def stop_gradient(value: Any | None) -> Any:
    """The value; differentiation does not pass. Of a tuple that of each element; None stays None."""
    if isinstance(value, (tuple, list)):
        return tuple([stop_gradient(each) for each in value])
    return value if value is None else ops.StopGradient()(value)


def stack(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors side by side along a new dimension."""
    return ops.Stack(axis)(tensors)


@tensor_method()
def split(tensor: Any, split_size_or_sections: Any, axis: int = 0) -> Any:
    """Parts along `axis`, a tuple: of one size, the last one of what is left, or of the sizes listed.

    Raises:
        ValueError: the sizes do not add up to the size of the dimension.
    """
    dim = axis_of("split", axis, len(tensor.shape))
    sizes = part_sizes("split", split_size_or_sections, tensor.shape, dim)
    if isinstance(split_size_or_sections, int) and sizes[0] == sizes[-1]:
        return ops.Split(dim, len(sizes))(tensor)
    return _cut(tensor, sizes, dim)


def _cut(tensor: Any, sizes: Any, dim: int) -> Any:
    return tuple([ops.StridedSlice()(tensor, *part_of(tensor.shape, sizes, dim, i)) for i in range(len(sizes))])


@tensor_method()
def chunk(input: Any, chunks: int, axis: int = 0) -> Any:
    """At most `chunks` parts of one size along `axis`, a tuple; the last one may be smaller."""
    return split(input, chunk_size("chunk", chunks, input.shape, axis), axis)


@tensor_method()
def masked_fill(input_x: Any, mask: Any, value: Any) -> Any:
    """`value` where the mask is true, `input_x` elsewhere; a tensor of one value is taken in the type of `input_x`."""
    if isinstance(value, (bool, int, float)) or value.dtype == input_x.dtype:
        return ops.MaskedFill()(input_x, mask, value)
    return ops.MaskedFill()(input_x, mask, ops.cast(value, input_x.dtype))


def broadcast_to(input: Any, shape: Any) -> Any:
    """`input` repeated to `shape`."""
    return ops.BroadcastTo(shape)(input)


def strided_slice(
    input_x: Any, begin: Any, end: Any, strides: Any, begin_mask: int = 0, end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0, shrink_axis_mask: int = 0,
) -> Any:  # fmt: skip
    """begin[d]:end[d]:strides[d] of every dimension d."""
    cut = ops.StridedSlice(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return cut(input_x, begin, end, strides)


def slice(input_x: Any, begin: Any, size: Any) -> Any:
    """size[d] elements from begin[d] of every dimension d, all that are left for -1.

    Raises:
        ValueError: there are not so many.
    """
    within("slice", input_x.shape, begin, size)
    end = [b + s if s >= 0 else n for b, s, n in zip(begin, size, input_x.shape, strict=True)]
    return ops.StridedSlice()(input_x, begin, tuple(end), (1,) * len(end))


def gather(input_params: Any, input_indices: Any, axis: int, batch_dims: int = 0) -> Any:
    """Slices of `input_params` along `axis` at `input_indices`."""
    return ops.Gather(batch_dims)(input_params, input_indices, axis)


def one_hot(indices: Any, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1) -> Any:
    """A new dimension of `depth`: on_value at the index, off_value elsewhere."""
    return ops.OneHot(axis)(indices, depth, on_value, off_value)


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A tensor of one value, in the element type of a tensor of that value unless `dtype` is given."""
    return ops.Fill()(number_type(fill_value) if dtype is None else dtype, size, fill_value)


def zeros(size: Any, dtype: Any = None) -> Any:
    """A tensor of zeros."""
    return ops.Fill()(FLOAT32 if dtype is None else dtype, size, 0)


def ones(shape: Any, dtype: Any = None) -> Any:
    """A tensor of ones."""
    return ops.Fill()(FLOAT32 if dtype is None else dtype, shape, 1)


def zeros_like(input: Any, *, dtype: Any = None) -> Any:
    """Zeros of the shape of `input`."""
    return ops.Fill()(input.dtype if dtype is None else dtype, input.shape, 0)


def full_like(input: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A tensor of one value, of the shape of `input`."""
    return ops.Fill()(input.dtype if dtype is None else dtype, input.shape, fill_value)


def ones_like(input: Any, *, dtype: Any = None) -> Any:
    """Ones of the shape of `input`."""
    return ops.Fill()(input.dtype if dtype is None else dtype, input.shape, 1)


def scalar_to_array(input_scalar: Any, dtype: Any = None) -> Any:
    """A number as a tensor without dimensions, of Float32, Int64 or Bool unless `dtype` is given."""
    return ops.Fill()(number_type(input_scalar) if dtype is None else dtype, (), input_scalar)


scalar_to_tensor = scalar_to_array


def tuple_to_array(input_x: Sequence[int | float]) -> Any:
    """Numbers as a tensor of one dimension: Int32, or Float32 where the first is no integer."""
    return tensor_of_numbers("tuple_to_array", input_x)


def arange(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    """Numbers from start up to end, without end, by step."""
    if end is None:
        return ops.Range()(0, start, step, dtype)
    return ops.Range()(start, end, step, dtype)


def linspace(start: Any, end: Any, steps: int) -> Any:
    """`steps` numbers from start to end, both included, as Float32 unless these are tensors."""
    return ops.LinSpace()(start, end, steps)


def eye(n: int, m: Any = None, dtype: Any = FLOAT32) -> Any:
    """Ones on the diagonal of an n x m matrix."""
    return ops.Eye()(n, n if m is None else m, dtype)


@tensor_method()
def tril(input: Any, diagonal: int = 0) -> Any:
    """`input` on and below the diagonal, 0 above."""
    return ops.Tril(diagonal)(input)


@tensor_method()
def triu(input: Any, diagonal: int = 0) -> Any:
    """`input` on and above the diagonal, 0 below."""
    return ops.Triu(diagonal)(input)


@tensor_method()
def topk(input: Any, k: int, dim: Any = None, largest: bool = True, sorted: bool = True) -> Any:
    """(the k largest elements along `dim`, the smallest unless `largest`, their places as Int32); None: along the last
    dimension."""
    axis = axis_of("topk", -1 if dim is None else dim, len(input.shape))
    if largest and axis == len(input.shape) - 1:
        return ops.TopK(sorted)(input, k)
    values, places = ops.TopkExt()(input, k, axis, largest, sorted)
    return values, ops.cast(places, INT32)


@tensor_method()
def flip(input: Any, dims: Any) -> Any:
    """`input` in reverse order along `dims`."""
    return ops.ReverseV2(dims)(input)


def tensordump(file_name: str, tensor: Any, mode: str = "out") -> Any:
    """Writes a tensor to a file at every step; see TensorDump."""
    return ops.TensorDump(mode)(file_name, tensor)
