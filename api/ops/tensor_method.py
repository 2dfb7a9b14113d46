"""Methods of tensors whose arguments stand otherwise than those of the function of that name, or that have none."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.ops.arguments import (
    element_type,
    extremum,
    flattened,
    kept,
    least,
    permutation,
    reduced_axes,
    repeated_places,
    sizes_of,
    summed_type,
)
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.method_table import tensor_method
from mspc.ir.types import BOOL, FLOAT16, FLOAT32, INT8, INT16, INT32, INT64, UINT8

# Shape --------------------------------------------------------------------------------------------


@tensor_method("reshape", "view")
def reshape(self: Any, *shape: Any) -> Any:
    """The elements in their order in another shape; one size may be -1."""
    return ops.Reshape()(self, sizes_of(shape))


@tensor_method()
def reshape_as(self: Any, other: TensorLike) -> Any:
    """The elements in their order in the shape of `other`."""
    return ops.Reshape()(self, other.shape)


@tensor_method()
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


@tensor_method()
def transpose(self: Any, *axes: Any, dim0: Any = None, dim1: Any = None) -> Any:
    """Two dimensions exchanged, where two integers are given or dim0 and dim1; else the dimensions in another order,
    reversed where none is given."""
    if dim0 is not None:
        return ops.swapaxes(self, dim0, dim1)
    if len(axes) == 2:
        return ops.swapaxes(self, *axes)
    return ops.Transpose()(self, permutation(axes, len(self.shape)))


@tensor_method()
def permute(self: Any, *axes: Any) -> Any:
    """The dimensions in another order."""
    return ops.Transpose()(self, permutation(axes, len(self.shape)))


@tensor_method()
def t(self: Any) -> Any:
    """The dimensions in reverse order."""
    return ops.Transpose()(self, permutation((), len(self.shape)))


@tensor_method()
def unsqueeze(self: Any, dim: int) -> Any:
    """A new dimension of size 1 at `dim`."""
    return ops.ExpandDims()(self, dim)


@tensor_method("broadcast_to", "expand")
def broadcast_to(self: Any, *shape: Any) -> Any:
    """Repeated to a shape."""
    return ops.BroadcastTo(sizes_of(shape))(self)


@tensor_method()
def tile(self: Any, *reps: Any) -> Any:
    """Repeated reps[d] times along every dimension d."""
    return ops.Tile()(self, sizes_of(reps))


@tensor_method()
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


@tensor_method("astype", "to", "type")
def astype(self: Any, dtype: Any, copy: bool = True) -> Any:
    """The elements as another type. Raises TypeError where `dtype` is none."""
    return _as(self, element_type(dtype))


@tensor_method("float")
def as_float(self: Any) -> Any:
    """The elements as Float32."""
    return _as(self, FLOAT32)


@tensor_method("int")
def as_int(self: Any) -> Any:
    """The elements as Int32."""
    return _as(self, INT32)


@tensor_method("long")
def as_long(self: Any) -> Any:
    """The elements as Int64."""
    return _as(self, INT64)


@tensor_method("half")
def as_half(self: Any) -> Any:
    """The elements as Float16."""
    return _as(self, FLOAT16)


@tensor_method("bool")
def as_bool(self: Any) -> Any:
    """Whether the elements are other than 0."""
    return _as(self, BOOL)


def _as(self: Any, dtype: Any) -> Any:
    return self if self.dtype == dtype else ops.Cast()(self, dtype)


@tensor_method("copy", "clone", "contiguous")
def copy(self: Any) -> Any:
    """The same values."""
    return self


# Reductions ---------------------------------------------------------------------------------------


@tensor_method("cumsum")
def _running_sum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Running sums along `axis` of the elements as `dtype`, of Bool and of integers of 8 and 16 bits as Int32 where it
    is not given, but for UInt16; None: of all elements in their order."""
    if dtype is None and x.dtype in (BOOL, INT8, INT16, UINT8):
        dtype = INT32
    return ops.cumsum(x, axis, dtype)


@tensor_method("sum")
def total(self: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **spelled: Any) -> Any:
    """Sum along `axis`, None for all, of the elements as `dtype`; integers and Bool add up to Int64. True or False in
    place of the type says whether the dimensions are kept."""
    if isinstance(dtype, bool):
        return total(self, axis, None, dtype, **spelled)
    axes = reduced_axes("ReduceSum", axis, len(self.shape))
    return ops.ReduceSum(kept("sum", keepdims, spelled))(_as(self, summed_type(self.dtype, dtype)), axes)


@tensor_method("max")
def largest(self: Any, *given: Any, **named: Any) -> Any:
    """The maximum; along a dimension (maxima, their places as Int64): `x.max(dim, keepdim)`. With the name axis, or
    with keepdims, the values alone: `x.max(axis=1)`; with return_indices both."""
    axis, keep, both = extremum("max", given, named)
    if both:
        return ops.MaxDim()(self, axis, keep)
    return ops.ReduceMax(keep)(self, reduced_axes("ReduceMax", axis, len(self.shape)))


@tensor_method("min")
def smallest(self: Any, *given: Any, **named: Any) -> Any:
    """The minimum; along a dimension (minima, their places as Int64): see `max`."""
    axis, keep, both = extremum("min", given, named)
    if both:
        return ops.MinDim()(self, axis, keep)
    return ops.ReduceMin(keep)(self, reduced_axes("ReduceMin", axis, len(self.shape)))


@tensor_method()
def argmax(self: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Index of the maximum along `axis`, Int64; None: among all elements in their order."""
    return ops.argmax(self, axis, keepdims)


@tensor_method()
def argmin(self: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Index of the minimum along `axis`, Int32; None: among all elements in their order."""
    return ops.argmin(self, axis, keepdims)


@tensor_method()
def std(self: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """Standard deviation along `axis`, None for all: the root of squared distances from the mean, summed and divided by
    their number less `ddof`, which is called correction, too."""
    return ops.std(self, axis, ddof, keepdims)


@tensor_method()
def var(self: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """Variance along `axis`, None for all; see `std`."""
    return ops.var(self, axis, ddof, keepdims)


# Two ways to be called ----------------------------------------------------------------------------


@tensor_method()
def add(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """The tensor plus `alpha` times the other."""
    return ops.Add()(self, other) if isinstance(alpha, int) and alpha == 1 else ops.Add()(self, ops.Mul()(other, alpha))


@tensor_method()
def sub(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """The tensor less `alpha` times the other."""
    return ops.Sub()(self, other) if isinstance(alpha, int) and alpha == 1 else ops.Sub()(self, ops.Mul()(other, alpha))


@tensor_method()
def gather(self: Any, input_indices: TensorLike | int, axis: int | TensorLike, batch_dims: int = 0) -> Any:
    """Slices along `axis` at `input_indices`; called as (dim, index) element by element the values at the index along
    the dimension."""
    if isinstance(input_indices, int):
        return ops.gather_elements(self, input_indices, axis)
    return ops.Gather(batch_dims)(self, input_indices, axis)


@tensor_method()
def sort(self: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """(elements in order along `axis`, the places that they come from); what is equal stays in its order whatever
    `stable` says."""
    return ops.sort(self, axis, descending)


@tensor_method()
def argsort(self: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The places that the elements come from when they stand in order along `axis`; what is equal stays in its order
    whatever `stable` says."""
    return ops.argsort(self, axis, descending)


# What is known at compile time --------------------------------------------------------------------


@tensor_method("dim", "ndimension")
def dim(self: Any) -> Any:
    """Number of dimensions, an int."""
    return len(self.shape)

