"""Kinds of ATen that read and write elements by index, and bags of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.types import BOOL, INT64
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.mint.nn import functional
from mspc.readers.pytorch.kinds.complex_numbers import by_parts
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.shapes import expanded, spread_out


def embedding(weight: Any, indices: Any, padding_idx: Any) -> Any:
    """Rows of a table; the one at padding_idx, from 0, gets no gradient."""
    return functional.embedding(indices, weight, None if padding_idx < 0 else padding_idx)


def places_of(name: str, indices: Any) -> Any:
    """Return an index for every dimension: None in ATen's lists takes all of it."""
    for index in indices:
        if index is not None and index.dtype == BOOL:
            raise ApiValueError(f"{name}: the number of elements that a Bool tensor selects depends "
                                "on its contents; where(mask, a, b) keeps the shape")
    return tuple([slice(None) if index is None else index for index in indices])


def at_places(self: Any, indices: Any) -> Any:
    """Return the elements at places that tensors of integers name."""
    places = places_of("index", indices)
    if len(places) == 1:
        return ops.Gather()(self, places[0], 0)
    return self[places]


def put(self: Any, indices: Any, values: Any, accumulate: Any) -> Any:
    """Return the tensor with other elements at the places that tensors of integers, or a Bool one, name."""
    first = indices[0]
    if len(indices) == 1 and first is not None and first.dtype == BOOL:
        rest = len(self.shape) - len(first.shape)
        if max((1, *values.shape[: max(0, len(values.shape) - rest)])) == 1:
            mask = ops.Reshape()(first, first.shape + (1,) * rest)
            row = ops.Reshape()(values, values.shape[max(0, len(values.shape) - rest) :])
            other = ops.cast(row, self.dtype) + self if accumulate else ops.cast(row, self.dtype)
            return ops.where(mask, other, self)
    places_of("index_put", indices)
    values = ops.cast(values, self.dtype)
    taken = [d for d, index in enumerate(indices) if index is not None]
    if len(taken) == len(indices):
        return self.index_put(tuple(indices), values, accumulate)
    order = (*taken, *(d for d in range(len(self.shape)) if d not in taken))
    back = tuple([order.index(d) for d in range(len(order))])
    places = tuple([indices[d] for d in taken])
    rows = values_ahead(self.shape, taken, places, values)
    return ops.Transpose()(ops.Transpose()(self, order).index_put(places, rows, accumulate), back)


def values_ahead(shape: Any, taken: Any, places: Any, values: Any) -> Any:
    """Return the values put at places along some dimensions of a shape, with the dimensions of the places first: they
    come after the dimensions before these, if these follow each other."""
    sizes = np.broadcast_shapes(*[each.shape for each in places])
    rest = [size for d, size in enumerate(shape) if d not in taken]
    ahead = taken[0] if taken[-1] - taken[0] + 1 == len(taken) else 0
    whole = ops.BroadcastTo((*rest[:ahead], *sizes, *rest[ahead:]))(values)
    end = ahead + len(sizes)
    return ops.Transpose()(whole, (*range(ahead, end), *range(ahead), *range(end, len(whole.shape))))


def index_along(source: Any, dim: Any, index: Any) -> Any:
    """Places along a dimension, said for every element of a tensor."""
    place = dim % len(source.shape)
    column = ops.Reshape()(index, tuple([-1 if d == place else 1 for d in range(len(source.shape))]))
    return ops.BroadcastTo(source.shape)(column)


def farthest(dtype: Any, is_greatest: Any) -> Any:
    """Return the greatest or the least number of an element type."""
    if dtype == BOOL:
        return is_greatest
    if dtype.is_integer:
        return int(np.iinfo(dtype.numpy).max if is_greatest else np.iinfo(dtype.numpy).min)
    return float("inf") if is_greatest else float("-inf")


def multiplied(self: Any, dim: Any, keepdim: Any, dtype: Any) -> Any:
    """Return the product along a dimension."""
    if not self.dtype.is_complex:
        return ops.prod(self, dim, keepdim, dtype)
    place = dim % len(self.shape)
    found = ops.LibraryFunction("complex_prod", (place,))(self)
    return found if keepdim else ops.Squeeze(place)(found)


def scattered_products(self: Any, dim: Any, index: Any, src: Any, include_self: Any) -> Any:
    """Return the product of the values put at each place: every place looks at all of them along the dimension."""
    place = dim % len(self.shape)
    front = tuple([slice(0, size) for size in index.shape])
    part = src[front] if src.shape != index.shape else src
    for d, size in enumerate(self.shape):  # rows beside the index have nothing to be put
        if d != place and index.shape[d] < size:
            rest = (*index.shape[:d], size - index.shape[d], *index.shape[d + 1 :])
            index = ops.Concat(d)((index, ops.Fill()(index.dtype, rest, -1)))
            part = ops.Concat(d)((part, ops.Fill()(part.dtype, rest, 0)))
    begin = [0] * len(self.shape)
    row = ops.Reshape()(ops.arange(self.shape[place]), tuple([-1 if d == place else 1 for d in range(len(begin) + 1)]))
    meets = ops.Equal()(ops.ExpandDims()(index, place), ops.cast(row, index.dtype))
    many = ops.where(meets, ops.ExpandDims()(part, place), ops.cast(1.0, src.dtype))
    missing = ops.LogicalNot()(ops.ReduceAny()(meets, place + 1))
    rest = self
    if include_self:
        many = ops.Concat(place + 1)((many, ops.ExpandDims()(rest, place + 1)))
    return ops.where(missing, rest, multiplied(many, place + 1, False, None))


def scattered_extrema(self: Any, dim: Any, index: Any, src: Any, greatest: Any, include_self: Any) -> Any:
    """Return the greatest or the least of the values put at each place; equal ones share the gradient equally."""
    part = src[tuple([slice(0, size) for size in index.shape])] if src.shape != index.shape else src
    base = self
    if not include_self:
        base = mint.scatter(self, dim, index, ops.Fill()(self.dtype, index.shape, farthest(self.dtype, not greatest)))
    combine = "maximum" if greatest else "minimum"
    return ops.ScatterElements(dim % len(self.shape), combine=combine)(base, index, part)


def scattered_with(self: Any, dim: Any, index: Any, src: Any, reduce: Any, include_self: Any) -> Any:
    """Elements at places along a dimension, put together with those that are there, or with each other alone."""
    if reduce == "mean":
        count = mint.scatter_add(ops.zeros_like(self), dim, index, ops.ones_like(src))
        total = scattered_with(self, dim, index, src, "sum", include_self)
        many = count + 1 if include_self else ops.Maximum()(count, ops.ones_like(count))
        return total / many if self.dtype.is_float else ops.FloorDiv()(total, many)
    if reduce == "prod":
        return scattered_products(self, dim, index, src, include_self)
    if reduce in ("amax", "amin"):
        return scattered_extrema(self, dim, index, src, reduce == "amax", include_self)
    if reduce != "sum":
        raise ApiValueError(f"scatter_reduce: reduce is {reduce!r}; read are 'sum', 'mean', 'prod', 'amax' and 'amin'")
    base = self if include_self else by_parts(mint.scatter, None)(self, dim, index, ops.zeros_like(src))
    return by_parts(mint.scatter_add, None)(base, dim, index, src)


# Sizes that depend on data have a bound (`--size u0=N`), which `readers/pytorch/sizes.py` adds to the arguments.


def repeated(self: Any, repeats: Any, dim: Any, output_size: Any, bound: Any) -> Any:
    """Return every slice along a dimension, every element if that is None, as often as a tensor says."""
    x = ops.Reshape()(self, (-1,)) if dim is None else self
    place = 0 if dim is None else dim
    each = ops.BroadcastTo((x.shape[place],))(repeats)
    return mint.index_select(x, place, repeated_places(each, output_size, bound))


def nonzero(self: Any, bound: Any, shapes: Any) -> Any:
    """Return the places of the elements that are not 0, as rows."""
    if bound is None:
        return ops.LibraryFunction("nonzero", (shapes[0],))(self)
    places, count = ops.LibraryFunction("bounded_places", (bound,))(self)
    return ops.Bounded(0)(places, count)


def places_by_dimension(self: Any, bound: Any, shapes: Any) -> Any:
    """Return the places along each dimension of the elements that are not 0."""
    if bound is None:
        x = self if self.shape else ops.Reshape()(self, (1,))
        return ops.unstack(nonzero(x, None, ((*shapes[0], len(x.shape)),)), 1)
    places, count = ops.LibraryFunction("bounded_places", (bound,))(self)
    return [ops.Bounded(0)(each, count) for each in ops.unstack(places, 1)]


def selected(self: Any, mask: Any, bound: Any, shapes: Any) -> Any:
    """Return the elements in the places of a mask."""
    if bound is None:
        return ops.LibraryFunction("masked_select", (shapes[0],))(self, mask)
    self, mask = spread_out([self, mask])
    places = ops.Reshape()(nonzero(ops.Reshape()(mask, (-1,)), bound, shapes), (-1,))
    return ops.Gather()(ops.Reshape()(self, (-1,)), places, 0)


def counts_of_integers(self: Any, weights: Any, minlength: Any, bound: Any, shapes: Any) -> Any:
    """Return how often each integer occurs."""
    if bound is None:
        operands = [self] if weights is None else [self, weights]
        return ops.LibraryFunction("bincount", (minlength, shapes[0]))(*operands)
    if weights is not None:
        raise ApiValueError("bincount: with a bound of its size it takes no weights")
    found, count = ops.LibraryFunction("bounded_counts", (bound, minlength))(self)
    return ops.Bounded(0)(found, count)


def unique(self: Any, return_inverse: Any, return_counts: Any, bound: Any, shapes: Any) -> Any:
    """Return the elements in order, each once, the place of every element in them, and how often each occurs."""
    if bound is None:
        return ops.LibraryFunction("unique", (None, False, shapes))(self)
    values, counts, inverse, count = ops.LibraryFunction("bounded_unique", (bound,))(self)
    nothing = ops.zeros((0,), INT64)
    return (
        ops.Bounded(0)(values, count), inverse if return_inverse else nothing,
        ops.Bounded(0)(counts, count) if return_counts else nothing,
    )  # fmt: skip


def repeated_places(repeats: Any, output_size: Any, bound: Any = None) -> Any:
    """Return every place of a tensor as often as its element says."""
    if bound is not None and output_size is None:
        places, count = ops.LibraryFunction("bounded_repeats", (bound,))(repeats)
        return ops.Bounded(0)(places, count)
    if output_size is None:
        raise ApiValueError("repeat_interleave: how many elements it gives is only known at run time; say output_size")
    ends = ops.CumSum()(ops.cast(repeats, INT64), 0)
    return mint.searchsorted(ends, ops.cast(ops.arange(output_size), INT64), right=True)


def put_flat(self: Any, index: Any, source: Any, accumulate: Any) -> Any:
    """Other elements at places of all elements in a row."""
    flat = ops.Reshape()(self, (-1,))
    values = ops.Reshape()(ops.cast(source, self.dtype), (-1,))
    return ops.Reshape()(flat.index_put((ops.Reshape()(index, (-1,)),), values, accumulate), self.shape)


def filled_in_order(self: Any, mask: Any, source: Any) -> Any:
    """Return the tensor with the elements of `source`, one after the other, in the places of the mask."""
    self, mask = spread_out([self, mask])
    there = ops.BroadcastTo(self.shape)(mask)
    places = ops.CumSum()(ops.cast(ops.Reshape()(there, (-1,)), INT64), 0) - 1
    places = ops.Maximum()(places, ops.zeros_like(places))
    taken = ops.Gather()(ops.Reshape()(source, (-1,)), ops.Minimum()(places, source.size - 1), 0)
    return ops.where(there, ops.Reshape()(taken, self.shape), self)


def gathered(self: Any, dim: Any, index: Any) -> Any:
    """Return the elements at places along a dimension."""
    return mint.gather(self, dim, index) if index.size else ops.zeros(index.shape, self.dtype)


def gathered_along(self: Any, indices: Any, dim: Any) -> Any:
    """Return the elements at places along a dimension, or of all in a row; other dimensions are broadcast."""
    if dim is None:
        return gathered(ops.Reshape()(self, (-1,)), 0, ops.Reshape()(indices, (-1,)))
    place = dim % len(self.shape)
    sizes = [1 if d == place else max(n, indices.shape[d]) for d, n in enumerate(self.shape)]
    whole = [expanded(x, [x.shape[d] if d == place else n for d, n in enumerate(sizes)]) for x in (self, indices)]
    return gathered(whole[0], place, whole[1])


INDEXING = (
    row("put.default", "self, index, source, accumulate=False", put_flat),
    row("masked_scatter.default", "self, mask, source", filled_in_order),
    row("embedding.default", "weight, indices, padding_idx=-1, !scale_grad_by_freq=False, -sparse=False", embedding),
    row("index.Tensor", "self, indices", at_places),
    row("index_put.default _unsafe_index_put.default", "self, indices, values, accumulate=False", put),
    row("index_select.default", "self, dim, index", mint.index_select),
    row("gather.default", "self, dim, index, -sparse_grad=False", gathered),
    row("scatter.src", "self, dim, index, src", mint.scatter),
    row("scatter.value", "self, dim, index, value", mint.scatter),
    row("scatter_reduce.two", "self, dim, index, src, reduce, include_self=True", scattered_with),
    row("index_reduce.default", "self, dim, index, source, reduce, include_self=True",
        lambda self, dim, index, source, *how: scattered_with(
            self, dim, index_along(source, dim, index), source, *how)),
    row("index_copy.default", "self, dim, index, source",
        lambda self, dim, index, source: mint.scatter(self, dim, index_along(source, dim, index), source)),
    row("index_fill.int_Scalar index_fill.int_Tensor", "self, dim, index, value", ops.index_fill),
    row("repeat_interleave.Tensor", "repeats, output_size=None, bound=None", repeated_places),
    row("repeat_interleave.self_Tensor", "self, repeats, dim=None, output_size=None, bound=None", repeated),
    row("nonzero.default argwhere.default", "self, bound=None", nonzero, is_counted=True),
    row("nonzero_numpy.default", "self, bound=None", places_by_dimension, is_counted=True),
    row("where.default", "condition, bound=None", places_by_dimension, is_counted=True),
    row("masked_select.default", "self, mask, bound=None", selected, is_counted=True),
    row("_unique2.default", "self, -sorted=True, return_inverse=False, return_counts=False, bound=None", unique,
        is_counted=True),
    row("take.default", "self, index", lambda self, index: ops.take(ops.Reshape()(self, (-1,)), index)),
    row("scatter_add.default", "self, dim, index, src", mint.scatter_add),
    row("index_add.default", "self, dim, index, source, alpha=1",
        lambda self, dim, index, source, alpha: mint.index_add(self, dim, index, source, alpha=alpha)),
    row("one_hot.default", "self, num_classes=-1", functional.one_hot),
    row("take_along_dim.default", "self, indices, dim=None", gathered_along),
    row("scatter.reduce", "self, dim, index, src, reduce", lambda self, dim, index, src, reduce: scattered_with(
        self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce], True)),
    row("scatter.value_reduce", "self, dim, index, value, reduce", lambda self, dim, index, value, reduce:
        scattered_with(self, dim, index, ops.Fill()(self.dtype, index.shape, value),
                       {"add": "sum", "multiply": "prod"}[reduce], True)),
    row("searchsorted.Tensor", "sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None",
        lambda sorted_sequence, self, out_int32, right, side, sorter: mint.searchsorted(
            sorted_sequence, self, out_int32=out_int32, right=right, side=side, sorter=sorter)),
    row("searchsorted.Scalar", "sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None",
        lambda sorted_sequence, self, out_int32, right, side, sorter: mint.searchsorted(
            sorted_sequence, ops.cast(self, sorted_sequence.dtype), out_int32=out_int32, right=right, side=side,
            sorter=sorter)),
    row("bucketize.Scalar", "self, boundaries, out_int32=False, right=False",
        lambda self, boundaries, out_int32, right: mint.searchsorted(
            boundaries, ops.cast(self, boundaries.dtype), out_int32=out_int32, right=right)),
    row("bucketize.Tensor", "self, boundaries, out_int32=False, right=False",
        lambda self, boundaries, out_int32, right: mint.searchsorted(
            boundaries, self, out_int32=out_int32, right=right)),
)  # fmt: skip
"""Kinds of places."""


def bags(
    weight: Any, indices: Any, offsets: Any, scaled: Any, mode: Any, per_sample_weights: Any, include_last_offset: Any,
    padding_idx: Any,
) -> Any:  # fmt: skip
    """Return rows of a table reduced by bag; nothing in the results that only PyTorch's gradient reads. Bags begin at
    `offsets`; mode 0 is their sum, 1 their mean, 2 their maximum."""
    if scaled:
        raise ApiValueError("embedding_bag: gradients by frequency are not read")
    count = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    places = ops.cast(ops.arange(indices.shape[0]), offsets.dtype)
    begun = ops.LessEqual()(ops.ExpandDims()(offsets[:count], 0), ops.ExpandDims()(places, 1))
    bag = ops.ReduceSum()(ops.cast(begun, INT64), 1) - 1
    rows = ops.Gather()(weight, indices, 0)
    if per_sample_weights is not None:
        rows = rows * ops.ExpandDims()(per_sample_weights, 1)
    counted = ops.ones_like(bag)
    if mode == 2:
        seen = bag if padding_idx is None else ops.where(indices == padding_idx % weight.shape[0], count, bag)
        places = ops.broadcast_to(ops.ExpandDims()(seen, 1), rows.shape)
        nothing = ops.zeros((count + 1, rows.shape[1]), rows.dtype)
        return scattered_extrema(nothing, 0, places, rows, True, False)[:count], None, None, None
    if padding_idx is not None:
        counted = ops.cast(ops.NotEqual()(indices, padding_idx % weight.shape[0]), INT64)
        rows = rows * ops.ExpandDims()(ops.cast(counted, rows.dtype), 1)
    sums = ops.UnsortedSegmentSum()(rows, bag, count)
    if mode == 1:
        sizes = ops.UnsortedSegmentSum()(counted, bag, count)
        sums = sums / ops.ExpandDims()(ops.cast(ops.Maximum()(sizes, ops.ones_like(sizes)), rows.dtype), 1)
    return sums, None, None, None


_REST = "mode=0, -sparse=False, per_sample_weights=None, include_last_offset=False"
BAGS = (
    row("embedding_bag.padding_idx",
        "weight, indices, offsets, scale_grad_by_freq, mode, -sparse, per_sample_weights, include_last_offset, "
        "padding_idx", bags),
    row("_embedding_bag.default", f"weight, indices, offsets, scale_grad_by_freq=False, {_REST}, padding_idx=-1",
        lambda *given: bags(*given[:-1], None if given[-1] < 0 else given[-1])),
    row("embedding_bag.default", f"weight, indices, offsets, scale_grad_by_freq=False, {_REST}",
        lambda *given: bags(*given, None)),
)  # fmt: skip
"""Kinds of bags."""
