"""The arguments of these methods of tensors differ from those of the function of that name, or there is no function."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import (
    extremum,
    flattened,
    keeps,
    least,
    permutation,
    reduced_axes,
    repeated_places,
    sizes_of,
    summed_type,
)
from mspc.ir.types import BOOL, INT8, INT16, INT32, UINT8

# Shape --------------------------------------------------------------------------------------------


def flatten(self: Any, order: Any = "C", *dims: int, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Dimensions start_dim to end_dim made one, the last index the fastest, or the first one for order "F". Integers in
    place of the order are start_dim and end_dim.

    Raises:
        ValueError: another order.
    """
    if len(dims) > (1 if isinstance(order, int) else 0):
        takes = ["it takes order, or start_dim and end_dim"]
        raise ApiTypeError(f"Tensor.flatten(): {len(dims) + 1} arguments by position do not fit", takes)
    if isinstance(order, int):
        return flatten(self, start_dim=order, end_dim=dims[0] if dims else end_dim)
    shape = flattened("flatten", self.shape, start_dim, end_dim, order)
    if order == "F":
        return transpose(ops.Reshape()(transpose(self), tuple(reversed(shape))))
    return _in_shape(self, shape)


def _in_shape(self: Any, shape: Any) -> Any:
    return self if self.shape == shape else ops.Reshape()(self, shape)


def transpose(self: Any, *axes: Any, dim0: Any = None, dim1: Any = None) -> Any:
    """Two dimensions exchanged, where two integers are given or dim0 and dim1; else the dimensions in another order,
    reversed where none is given."""
    if dim0 is not None:
        return ops.swapaxes(self, dim0, dim1)
    if len(axes) == 2:
        return ops.swapaxes(self, *axes)
    return ops.Transpose()(self, permutation(axes, len(self.shape)))


def repeat(self: Any, *repeats: Any, axis: Any = None) -> Any:
    """The tensor so many times along every dimension, of which there may be more in front. As MindSpore 2 before 2.10
    had it every slice along `axis`, where that is given or follows a list: as often as the list says of each."""
    given = repeats[0]
    if axis is not None or (len(repeats) == 2 and not isinstance(given, int)):
        place = repeats[1] if axis is None else axis
        return ops.Gather()(self, repeated_places("repeat", given, self.shape, place), place)
    counts = sizes_of(repeats)
    least("repeat", "the number of repeats", len(counts), len(self.shape))
    return ops.Tile()(self, counts)


# Element type -------------------------------------------------------------------------------------


def as_dtype(self: Any, dtype: Any) -> Any:
    return self if self.dtype == dtype else ops.Cast()(self, dtype)


def as_it_is(self: Any) -> Any:
    """The values that there are now, also of a parameter that is overwritten later."""
    return ops.deepcopy(self)


# Reductions ---------------------------------------------------------------------------------------


def running_sum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Running sums along `axis` of the elements as `dtype`, of Bool and of integers of 8 and 16 bits as Int32 where it
    is not given, but for UInt16; None: of all elements in their order."""
    if dtype is None and x.dtype in (BOOL, INT8, INT16, UINT8):
        dtype = INT32
    return ops.cumsum(x, axis, dtype)


def total(self: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **spelled: Any) -> Any:
    """Sum along `axis`, None for all, of the elements as `dtype`; integers and Bool add up to Int64. True or False in
    place of the type says whether the dimensions are kept."""
    if isinstance(dtype, bool):
        return total(self, axis, None, dtype, **spelled)
    axes = reduced_axes("ReduceSum", axis, len(self.shape))
    return ops.ReduceSum(keeps("sum", keepdims, spelled))(as_dtype(self, summed_type(self.dtype, dtype)), axes)


def largest(self: Any, *given: Any, **named: Any) -> Any:
    """The maximum; along a dimension (maxima, their places as Int64): `x.max(dim, keepdim)`. With the name axis, or
    with keepdims, the values alone: `x.max(axis=1)`; with return_indices both."""
    axis, keep, both = extremum("max", given, named)
    if both:
        return ops.MaxDim()(self, axis, keep)
    return ops.ReduceMax(keep)(self, reduced_axes("ReduceMax", axis, len(self.shape)))


def smallest(self: Any, *given: Any, **named: Any) -> Any:
    """The minimum; along a dimension (minima, their places as Int64): see `max`."""
    axis, keep, both = extremum("min", given, named)
    if both:
        return ops.MinDim()(self, axis, keep)
    return ops.ReduceMin(keep)(self, reduced_axes("ReduceMin", axis, len(self.shape)))


# Two ways to be called ----------------------------------------------------------------------------


def gather(self: Any, input_indices: TensorLike | int, axis: int | TensorLike, batch_dims: int = 0) -> Any:
    """Slices along `axis` at `input_indices`; called as (dim, index) element by element the values at the index along
    the dimension."""
    if isinstance(input_indices, int):
        return ops.gather_elements(self, input_indices, axis)
    return ops.Gather(batch_dims)(self, input_indices, axis)
