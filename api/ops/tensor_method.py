"""Methods of tensors whose arguments stand otherwise than those of the function of that name, or that have none."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import (
    element_type,
    flattened,
    kept,
    permutation,
    reduced_axes,
    repeated_places,
    sizes_of,
    summed_type,
)
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.method_table import tensor_method
from mspc.ir.types import BOOL, FLOAT16, FLOAT32, INT32, INT64

# Shape --------------------------------------------------------------------------------------------


@tensor_method("reshape", "view")
def reshape(self: Any, *shape: Any) -> Any:
    """The elements in their order in another shape; one size may be -1."""
    return ops.Reshape()(self, sizes_of(shape))


@tensor_method("reshape_as", "view_as")
def reshape_as(self: Any, other: TensorLike) -> Any:
    """The elements in their order in the shape of `other`."""
    return ops.Reshape()(self, other.shape)


@tensor_method()
def flatten(self: Any, order: str = "C", *, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Dimensions start_dim to end_dim made one, the last index the fastest, or the first one for order "F".

    Raises:
        ValueError: another order.
    """
    shape = flattened("flatten", self.shape, start_dim, end_dim, order)
    if order == "F":
        return transpose(ops.Reshape()(transpose(self), tuple(reversed(shape))))
    return _in_shape(self, shape)


@tensor_method()
def ravel(self: Any) -> Any:
    """All elements in one dimension."""
    return _in_shape(self, (self.size,))


def _in_shape(self: Any, shape: Any) -> Any:
    return self if self.shape == shape else ops.Reshape()(self, shape)


@tensor_method("transpose", "permute")
def transpose(self: Any, *axes: Any) -> Any:
    """The dimensions in another order, reversed where none is given."""
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
def expand_as(self: Any, x: Any) -> Any:
    """Repeated to the shape of `x`."""
    return ops.BroadcastTo(x.shape)(self)


@tensor_method()
def tile(self: Any, *reps: Any) -> Any:
    """Repeated reps[d] times along every dimension d."""
    return ops.Tile()(self, sizes_of(reps))


@tensor_method()
def repeat(self: Any, repeats: Any, axis: Any = None) -> Any:
    """Every slice along `axis` repeated, as often as `repeats` says of all or of each; None: every element."""
    if axis is None:
        return repeat(ravel(self), repeats, 0)
    return ops.Gather()(self, repeated_places("repeat", repeats, self.shape, axis), axis)


# Element type -------------------------------------------------------------------------------------


@tensor_method("astype", "to", "type")
def astype(self: Any, dtype: Any, copy: bool = True) -> Any:
    """The elements as another type. Raises TypeError where `dtype` is none."""
    return _as(self, element_type(dtype))


@tensor_method()
def type_as(self: Any, other: TensorLike) -> Any:
    """The elements as the type of those of `other`."""
    return _as(self, other.dtype)


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


@tensor_method("sum")
def total(self: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **spelled: Any) -> Any:
    """Sum along `axis`, None for all, of the elements as `dtype`; integers and Bool add up to Int64."""
    axes = reduced_axes("ReduceSum", axis, len(self.shape))
    return ops.ReduceSum(kept("sum", keepdims, spelled))(_as(self, summed_type(self.dtype, dtype)), axes)


@tensor_method("max")
def largest(self: Any, axis: Any = None, keepdims: bool = False, **spelled: Any) -> Any:
    """Maximum along `axis`, None for all."""
    return ops.ReduceMax(kept("max", keepdims, spelled))(self, reduced_axes("ReduceMax", axis, len(self.shape)))


@tensor_method("min")
def smallest(self: Any, axis: Any = None, keepdims: bool = False, **spelled: Any) -> Any:
    """Minimum along `axis`, None for all."""
    return ops.ReduceMin(kept("min", keepdims, spelled))(self, reduced_axes("ReduceMin", axis, len(self.shape)))


@tensor_method()
def argmax(self: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Index of the maximum along `axis`, Int64; None: among all elements in their order."""
    return ops.argmax(self, axis, keepdims)


@tensor_method()
def argmin(self: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Index of the minimum along `axis`, Int64; None: among all elements in their order."""
    return ops.argmin(self, axis, keepdims)


# What is known at compile time --------------------------------------------------------------------


@tensor_method("dim", "ndimension")
def dim(self: Any) -> Any:
    """Number of dimensions, an int."""
    return len(self.shape)


@tensor_method()
def numel(self: Any) -> Any:
    """Number of elements, an int."""
    return self.size


@tensor_method()
def is_floating_point(self: Any) -> Any:
    """Whether the elements are floating-point numbers."""
    return self.dtype.is_float
