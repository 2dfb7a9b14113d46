"""Methods of tensors with other arguments than the function of that name, or without such a function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ir.types import BOOL, INT8, INT16, INT32, INT64, UINT8
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.ops import index_arguments
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function.array_func import as_dtype, in_shape
from mspc.mindspore_api.ops.function_arguments import (
    axis_of,
    extremum,
    flattened,
    ints,
    keeps,
    least,
    no_such,
    permutation,
    reduced_axes,
    repeated_places,
    sizes_of,
    summed_to,
    summed_type,
)

# Shape --------------------------------------------------------------------------------------------


def flatten(self: Any, order: Any = "C", *dims: int, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merge dimensions start_dim to end_dim, with the last index the fastest, or the first one for order "F". Integers
    in place of the order are start_dim and end_dim. Raise ValueError for another order."""
    if len(dims) > (1 if isinstance(order, int) else 0):
        takes = ["it takes order, or start_dim and end_dim"]
        raise ApiTypeError(f"Tensor.flatten(): {len(dims) + 1} arguments by position do not fit", takes)
    if isinstance(order, int):
        return flatten(self, start_dim=order, end_dim=dims[0] if dims else end_dim)
    shape = flattened("flatten", self.shape, start_dim, end_dim, order)
    if order == "F":
        return transpose(ops.Reshape()(transpose(self), tuple(reversed(shape))))
    return in_shape(self, shape)


def transpose(self: Any, *axes: Any, dim0: Any = None, dim1: Any = None) -> Any:
    """Exchange two dimensions, if two integers are given or dim0 and dim1; else reorder the dimensions, reversed if
    none is given."""
    if dim0 is not None:
        return ops.swapaxes(self, dim0, dim1)
    if len(axes) == 2:
        return ops.swapaxes(self, *axes)
    return ops.Transpose()(self, permutation(axes, len(self.shape)))


def repeat(self: Any, *repeats: Any, axis: Any = None) -> Any:
    """Tile the tensor along every dimension; there may be additional leading ones. As in MindSpore 2 before 2.10,
    repeat each slice along `axis` if that is given or follows a list: the list has the count of each slice."""
    given = repeats[0]
    if axis is not None or (len(repeats) == 2 and not isinstance(given, int)):
        place = repeats[1] if axis is None else axis
        return ops.Gather()(self, repeated_places("repeat", given, self.shape, place), place)
    counts = sizes_of(repeats)
    least("repeat", "the number of repeats", len(counts), len(self.shape))
    return ops.Tile()(self, counts)


# Element type -------------------------------------------------------------------------------------


def as_it_is(self: Any) -> Any:
    """Return a copy of the current values, for a parameter that may be overwritten later."""
    return ops.deepcopy(self)


# Reductions ---------------------------------------------------------------------------------------


def running_sum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Return running sums along `axis` of the elements as `dtype`; None: of all elements in their order. Without
    `dtype`, Bool and integers of 8 and 16 bits become Int32, except UInt16."""
    if dtype is None and x.dtype in (BOOL, INT8, INT16, UINT8):
        dtype = INT32
    return ops.cumsum(x, axis, dtype)


def total(self: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **spelled: Any) -> Any:
    """Return the sum along `axis`, None for all, of the elements as `dtype`; integers and Bool add up to Int64. True or
    False in place of the type is `keepdims`."""
    if isinstance(dtype, bool):
        return total(self, axis, None, dtype, **spelled)
    axes = reduced_axes("ReduceSum", axis, len(self.shape))
    return ops.ReduceSum(keeps("sum", keepdims, spelled))(as_dtype(self, summed_type(self.dtype, dtype)), axes)


def largest(self: Any, *given: Any, **named: Any) -> Any:
    """Return the maximum; along a dimension (maxima, their indices as Int64): `x.max(dim, keepdim)`. With the name
    axis, or with keepdims, only the values: `x.max(axis=1)`; with return_indices both."""
    axis, keep, both = extremum("max", given, named)
    if both:
        return ops.MaxDim()(self, axis, keep)
    return ops.ReduceMax(keep)(self, reduced_axes("ReduceMax", axis, len(self.shape)))


def smallest(self: Any, *given: Any, **named: Any) -> Any:
    """Return the minimum; along a dimension (minima, their indices as Int64): see `max`."""
    axis, keep, both = extremum("min", given, named)
    if both:
        return ops.MinDim()(self, axis, keep)
    return ops.ReduceMin(keep)(self, reduced_axes("ReduceMin", axis, len(self.shape)))


# Two ways to be called ----------------------------------------------------------------------------


def gather(self: Any, input_indices: TensorLike | int, axis: int | TensorLike, batch_dims: int = 0) -> Any:
    """Return slices along `axis` at `input_indices`; called as (dim, index), for each element of the index the value at
    it along the dimension."""
    if isinstance(input_indices, int):
        return ops.gather_elements(self, input_indices, axis)
    return ops.Gather(batch_dims)(self, input_indices, axis)


def index_copy_(self: Any, dim: int, index: TensorLike, tensor: TensorLike) -> Any:
    """Replace the slices along `dim` at `index` by those of another tensor."""
    turned, rows = ops.swapaxes(self, 0, dim), ops.swapaxes(ops.cast(tensor, self.dtype), 0, dim)
    found = ops.TensorScatterUpdate()(turned, ops.ExpandDims()(index, -1), rows)
    return ops.assign(self, ops.swapaxes(found, 0, dim))


def put_(self: Any, index: TensorLike, source: TensorLike, accumulate: bool = False) -> Any:
    """Replace the elements at the flat indices `index` by those of the source, or add these."""
    flat, places = ops.Reshape()(self, (-1,)), ops.Reshape()(index, (-1,))
    places = ops.Select()(ops.Less()(places, 0), places + self.size, places)
    values = ops.cast(ops.Reshape()(source, (-1,)), self.dtype)
    kind = ops.TensorScatterAdd() if accumulate else ops.TensorScatterUpdate()
    return ops.assign(self, ops.Reshape()(kind(flat, ops.ExpandDims()(places, -1), values), self.shape))


def exponential_(self: Any, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """Fill the tensor with numbers of the exponential distribution with this rate."""
    samples = 1.0 - ops.rand(*self.shape, seed=generator)
    return ops.assign(self, ops.cast(-ops.Log()(samples) / lambd, self.dtype))


# Places ---------------------------------------------------------------------------------------------------


def scatter_add(self: Any, dim: Any, index: Any, src: Any = None) -> Any:
    """Return the tensor with every element of `src` added at its `index` along `dim`; called with two tensors (indices,
    updates) with the updates added at indices[..., k]."""
    if src is None:
        return ops.TensorScatterAdd()(self, dim, index)
    return ops.tensor_scatter_elements(self, index, src, dim, "add")


def index_add(
    self: Any, indices: TensorLike | int, y: TensorLike, axis: int | TensorLike, use_lock: bool = True,
    check_index_bound: bool = True, *, alpha: Any = 1,
) -> Any:  # fmt: skip
    """Return the tensor plus the slices of y at `indices` along `axis`; called as (dim, index, source) plus `alpha`
    times the source. Additions are sequential and indices are checked, whatever use_lock and check_index_bound say."""
    if isinstance(indices, int):
        return ops.index_add(self, y, axis * alpha, indices)
    return ops.index_add(self, indices, y, axis)


def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Return the tensor with the values at the indices given by a tuple of tensors, one for each of its first
    dimensions, replaced, or with `accumulate` added."""
    shape = (sum([ops.zeros(index.shape, INT64) for index in indices[1:]], ops.zeros(indices[0].shape, INT64))).shape
    sizes = self.shape
    places = [ops.cast(ops.broadcast_to(indices[d], shape), INT64) for d in range(len(indices))]
    found = ops.stack([ops.Select()(ops.Less()(places[d], 0), places[d] + sizes[d], places[d])
                       for d in range(len(indices))], -1)  # fmt: skip
    rows = ops.broadcast_to(ops.cast(values, self.dtype), (*shape, *sizes[len(indices) :]))
    return ops.TensorScatterAdd()(self, found, rows) if accumulate else ops.TensorScatterUpdate()(self, found, rows)


def masked_scatter(self: Any, mask: TensorLike, source: TensorLike) -> Any:
    """Return the tensor with the elements of `source` in order at the true elements of the mask, which must be
    known."""
    places = index_arguments.masked_scatter(mask, self.shape)
    values = ops.Reshape()(source, (-1,))
    values = ops.cast(ops.StridedSlice()(values, (0,), places.shape, (1,)), self.dtype)
    flat = ops.TensorScatterUpdate()(ops.Reshape()(self, (-1,)), ops.ExpandDims()(places, -1), values)
    return ops.Reshape()(flat, self.shape)


def select(self: Any, axis: int | TensorLike, index: int | TensorLike) -> Any:
    """Return the slice `index` along `axis`; called with two tensors (condition, y) the elements with a true condition,
    else those of y."""
    if not isinstance(axis, int):
        return ops.Select()(axis, self, index)
    axis = axis_of("select", axis, len(self.shape))
    place = index + self.shape[axis] if index < 0 else index
    return ops.Squeeze(axis)(ops.narrow(self, axis, place, 1))


def take(self: Any, indices: TensorLike, axis: int | None = None, mode: str = "clip") -> Any:
    """Return the slices along `axis`, or the elements of the flat tensor, at `indices`. Indices out of range are
    clipped for the mode "clip", and wrapped for "wrap". Raise ValueError for another mode; "raise" is not supported,
    because indices are unknown when a network is compiled."""
    x, place = (ops.Reshape()(self, (-1,)), 0) if axis is None else (self, axis_of("take", axis, len(self.shape)))
    size = x.shape[place]
    if mode == "wrap":
        return ops.Gather()(x, ops.FloorMod()(indices, size), place)
    if mode != "clip":
        no_such("take", "mode", mode, "'clip' or 'wrap'")
    return ops.Gather()(x, ops.Minimum()(ops.Maximum()(indices, 0), size - 1), place)


def choose(self: Any, choices: Any, mode: str = "clip") -> Any:
    """Return at every position the element of the choice, one of several tensors or the slices of one, with the number
    given by this tensor. Raise ValueError for another mode than "clip" or "wrap"."""
    if mode not in ("clip", "wrap"):
        no_such("choose", "mode", mode, "'clip' or 'wrap'")
    parts = choices if isinstance(choices, tuple | list) else ops.unstack(choices)
    count = len(parts)
    place = ops.FloorMod()(self, count) if mode == "wrap" else ops.Minimum()(ops.Maximum()(self, 0), count - 1)
    found = parts[0]
    for i in range(1, count):
        found = ops.Select()(ops.Equal()(place, i), parts[i], found)
    return ops.broadcast_to(found, (ops.zeros_like(place) + ops.cast(ops.zeros_like(found), place.dtype)).shape)


def fill_diagonal(self: Any, fill_value: Any, wrap: bool = False) -> Any:
    """Return a matrix with one value on its diagonal, which restarts with wrap if there are more rows than columns; or
    a tensor of equal sizes."""
    shape = self.shape
    step = sum([math.prod(shape[d + 1 :]) for d in range(len(shape))])
    last = self.size if wrap or len(shape) > 2 else min(self.size, shape[1] * shape[1])
    flat = ops.Reshape()(self, (-1,))
    places = ops.arange(0, last, step)
    values = ops.full(places.shape, fill_value, dtype=self.dtype)
    return ops.Reshape()(ops.TensorScatterUpdate()(flat, ops.ExpandDims()(places, -1), values), shape)


# Turned round ---------------------------------------------------------------------------------------------


def sum_to_size(self: Any, *size: Any) -> Any:
    """Sum over the dimensions along which a tensor of this size is broadcast to the shape of this one. Raise ValueError
    if it cannot be."""
    wanted = sizes_of(size)
    axes = summed_to("sum_to_size", self.shape, wanted)
    return ops.Reshape()(ops.ReduceSum(True)(self, axes), wanted) if axes else ops.Reshape()(self, wanted)


def resize(self: Any, *new_shape: Any) -> Any:
    """Return the elements in their order in another shape: the end is cut off, or filled with zeros."""
    shape = ints("resize", "new_shape", sizes_of(new_shape))
    count, flat = math.prod(shape), ops.Reshape()(self, (-1,))
    if count <= self.size:
        return ops.Reshape()(ops.StridedSlice()(flat, (0,), (count,), (1,)), shape)
    return ops.Reshape()(ops.concat((flat, ops.zeros((count - self.size,), self.dtype))), shape)


def with_places(search: Any, x: Any, axis: Any, keep_dims: bool) -> Any:
    flat = axis is None
    places, values = search(0 if flat else axis, keep_dims and not flat)(ops.Reshape()(x, (-1,)) if flat else x)
    return values, ops.cast(places, INT64)
