"""Methods of tensors that put elements at places or take them from there, in the ways of NumPy and of PyTorch, and
those that make other tensors in the likeness of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.ops import known_values
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of, ints, no_such, sizes_of, summed_to
from mspc.ir.types import INT64

# Places ---------------------------------------------------------------------------------------------------


def scatter_add(self: Any, dim: Any, index: Any, src: Any = None) -> Any:
    """The tensor with every element of `src` added at the place that `index` names along `dim`; called with two tensors
    (indices, updates) with the updates added at indices[..., k]."""
    if src is None:
        return ops.TensorScatterAdd()(self, dim, index)
    return ops.tensor_scatter_elements(self, index, src, dim, "add")


def index_add(
    self: Any, indices: TensorLike | int, y: TensorLike, axis: int | TensorLike, use_lock: bool = True,
    check_index_bound: bool = True, *, alpha: Any = 1,
) -> Any:  # fmt: skip
    """The tensor plus the slices of y at the places along `axis` that `indices` names; called as (dim, index, source)
    plus `alpha` times the source. Additions happen one after another, and places are checked, whatever use_lock and
    check_index_bound say."""
    if isinstance(indices, int):
        return ops.index_add(self, y, axis * alpha, indices)
    return ops.index_add(self, indices, y, axis)


def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """The tensor with the values at the places that a tuple of tensors names, one for each of its first dimensions, or
    added there where they `accumulate`."""
    shape = (sum([ops.zeros(index.shape, INT64) for index in indices[1:]], ops.zeros(indices[0].shape, INT64))).shape
    sizes = self.shape
    places = [ops.cast(ops.broadcast_to(indices[d], shape), INT64) for d in range(len(indices))]
    found = ops.stack([ops.Select()(ops.Less()(places[d], 0), places[d] + sizes[d], places[d])
                       for d in range(len(indices))], -1)  # fmt: skip
    rows = ops.broadcast_to(ops.cast(values, self.dtype), (*shape, *sizes[len(indices) :]))
    return ops.TensorScatterAdd()(self, found, rows) if accumulate else ops.TensorScatterUpdate()(self, found, rows)


def masked_scatter(self: Any, mask: TensorLike, source: TensorLike) -> Any:
    """The tensor with the elements of `source` in their order where the mask, which must be known, is true."""
    places = known_values.masked_scatter(mask, self.shape)
    values = ops.Reshape()(source, (-1,))
    values = ops.cast(ops.StridedSlice()(values, (0,), places.shape, (1,)), self.dtype)
    flat = ops.TensorScatterUpdate()(ops.Reshape()(self, (-1,)), ops.ExpandDims()(places, -1), values)
    return ops.Reshape()(flat, self.shape)


def select(self: Any, axis: int | TensorLike, index: int | TensorLike) -> Any:
    """The slice `index` along `axis`; called with two tensors (condition, y) the elements where the condition is true,
    those of y elsewhere."""
    if not isinstance(axis, int):
        return ops.Select()(axis, self, index)
    axis = axis_of("select", axis, len(self.shape))
    place = index + self.shape[axis] if index < 0 else index
    return ops.Squeeze(axis)(ops.narrow(self, axis, place, 1))


def take(self: Any, indices: TensorLike, axis: int | None = None, mode: str = "clip") -> Any:
    """The slices along `axis`, or the elements in their order, at `indices`; those outside are those at the ends for
    the mode "clip", and counted on from the other end for "wrap".

    Raises:
        ValueError: another mode; "raise" is not there, as places are not known when a network is compiled.
    """
    x, place = (ops.Reshape()(self, (-1,)), 0) if axis is None else (self, axis_of("take", axis, len(self.shape)))
    size = x.shape[place]
    if mode == "wrap":
        return ops.Gather()(x, ops.FloorMod()(indices, size), place)
    if mode != "clip":
        no_such("take", "mode", mode, "'clip' or 'wrap'")
    return ops.Gather()(x, ops.Minimum()(ops.Maximum()(indices, 0), size - 1), place)


def choose(self: Any, choices: Any, mode: str = "clip") -> Any:
    """At every place the element of the choice, one of several tensors or the slices of one, that is there.

    Raises:
        ValueError: another mode than "clip" or "wrap".
    """
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
    """A matrix with one value on its diagonal, which in one of more rows than columns begins anew for wrap; or a tensor
    of equal sizes."""
    shape = self.shape
    step = sum([math.prod(shape[d + 1 :]) for d in range(len(shape))])
    last = self.size if wrap or len(shape) > 2 else min(self.size, shape[1] * shape[1])
    flat = ops.Reshape()(self, (-1,))
    places = ops.arange(0, last, step)
    values = ops.full(places.shape, fill_value, dtype=self.dtype)
    return ops.Reshape()(ops.TensorScatterUpdate()(flat, ops.ExpandDims()(places, -1), values), shape)


# Turned round ---------------------------------------------------------------------------------------------


def sum_to_size(self: Any, *size: Any) -> Any:
    """Summed over the dimensions along which a tensor of this size would be repeated to the shape of this one.

    Raises:
        ValueError: it cannot be.
    """
    wanted = sizes_of(size)
    axes = summed_to("sum_to_size", self.shape, wanted)
    return ops.Reshape()(ops.ReduceSum(True)(self, axes), wanted) if axes else ops.Reshape()(self, wanted)


def resize(self: Any, *new_shape: Any) -> Any:
    """The elements in their order in another shape: some at the end are left out, or zeros follow."""
    shape = ints("resize", "new_shape", sizes_of(new_shape))
    count, flat = math.prod(shape), ops.Reshape()(self, (-1,))
    if count <= self.size:
        return ops.Reshape()(ops.StridedSlice()(flat, (0,), (count,), (1,)), shape)
    return ops.Reshape()(ops.concat((flat, ops.zeros((count - self.size,), self.dtype))), shape)


def with_places(search: Any, x: Any, axis: Any, keep_dims: bool) -> Any:
    flat = axis is None
    places, values = search(0 if flat else axis, keep_dims and not flat)(ops.Reshape()(x, (-1,)) if flat else x)
    return values, ops.cast(places, INT64)
