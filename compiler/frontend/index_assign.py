"""Compiles `x[index] = value` of a tensor of the graph: makes the new tensor, which the name then refers to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.compiler.frontend.index import (
    Label,
    places,
    results_of,
    slice_fields,
    transposed,
)
from mspc.compiler.frontend.index_parts import IndexEntry, Shape, parts_of, without_masks
from mspc.compiler.frontend.operators import reshape
from mspc.compiler.frontend.state import Tracer
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, INT64


def with_elements(tracer: Tracer, x: Value, index: Any, value: Any) -> Value:
    """x with `value`, broadcast and in the element type of x, where the index chooses.

    Raises:
        MspcError: the index or the shape of the value does not fit.
    """
    given = tracer.cast(tracer.value(value, x.tensor_type.dtype), x.tensor_type.dtype)
    parts = parts_of(tracer, x.shape, index)
    masks = [part for part in parts if part.kind == "mask"]
    if len(masks) == 1 and all(part is masks[0] or part.takes_all(x.shape) for part in parts):
        return _masked(tracer, x, masks[0], given)
    parts = without_masks(tracer, parts, "such a mask may be beside full dimensions only: x[:, mask] = value")
    if any(part.kind == "places" for part in parts):
        return _scattered(tracer, x, parts, given)
    fields = slice_fields(x.shape, parts)
    spread = _spread(tracer, given, tuple(size for _, size in results_of(tracer, parts)))
    if fields is None:
        return reshape(tracer, spread, x.shape)
    counts = tuple(part.count for part in parts if part.kind == "slice")
    inside = tracer.op("StridedSliceGrad", **fields, shape=x.shape)
    there = tracer.emit(inside, tracer.emit(tracer.op("Fill", type=BOOL, shape=counts, value=True)))
    return tracer.emit(tracer.op("Select"), there, tracer.emit(inside, reshape(tracer, spread, counts)), x)


def _spread(tracer: Tracer, value: Value, shape: Shape) -> Value:
    """The value broadcast to a shape; leading dimensions of size 1 too many are left out."""
    extra = max(0, len(value.shape) - len(shape))
    remaining = value.shape[extra:]
    try:
        fits = math.prod(value.shape[:extra]) == 1 and np.broadcast_shapes(remaining, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise tracer.error(f"a value of shape {value.shape} does not fit elements of shape {shape}", kind=ValueError)
    value = reshape(tracer, value, remaining)
    return value if remaining == shape else tracer.emit(tracer.op("BroadcastTo", shape=shape), value)


# Masks --------------------------------------------------------------------------------------------


def _masked(tracer: Tracer, x: Value, part: IndexEntry, value: Value) -> Value:
    """A value of one row is chosen element by element; of several, the n-th goes to the n-th true place."""
    mask = tracer.value(part.chosen)
    behind = len(x.shape) - part.dim - len(mask.shape)
    first = max(0, len(value.shape) - behind)
    after = value.shape[first:]
    before, rows = (value.shape[: first - 1], value.shape[first - 1]) if first else ((), 1)
    if isinstance(part.chosen, np.ndarray) and rows not in (1, part.chosen.sum()):
        raise tracer.error(
            f"a value of shape {value.shape} does not fit the {part.chosen.sum()} elements of the mask", kind=ValueError
        )
    if rows == 1:
        value = reshape(tracer, value, (*before, *(1 for _ in mask.shape), *after))
    else:
        flat = tracer.cast(reshape(tracer, mask, (math.prod(mask.shape),)), INT64)
        counted = tracer.emit(tracer.op("CumSum", exclusive=True), flat)
        last = tracer.emit(tracer.op("Minimum"), counted, max(rows - 1, 0))
        value = tracer.emit(tracer.op("Gather", axis=len(before)), value, reshape(tracer, last, mask.shape))
    wide = reshape(tracer, mask, (*mask.shape, *(1 for _ in range(behind))))
    return tracer.emit(tracer.op("Select"), wide, _spread(tracer, value, x.shape), x)


# Arrays of integers -------------------------------------------------------------------------------


def _scattered(tracer: Tracer, x: Value, parts: list[IndexEntry], value: Value) -> Value:
    """Full dimensions go behind the others, for which one array names every element that is written."""
    order = results_of(tracer, parts)
    complete = [part.dim for part in parts if part.takes_all(x.shape)]
    named = [part for part in parts if part.dim >= 0 and part.dim not in complete]
    spread = _spread(tracer, value, tuple(size for _, size in order))
    remaining = [(label, size) for label, size in order if label[0] != "new"]
    spread = reshape(tracer, spread, tuple(size for _, size in remaining))
    last = [("slice", dim) for dim in complete]
    front = [entry for entry in remaining if entry[0] not in last]
    labels = [label for label, _ in remaining]
    updates = transposed(tracer, spread, [labels.index(label) for label in [*(label for label, _ in front), *last]])
    arrays = [_array(tracer, part, front) for part in named]
    shape = tuple(size for _, size in front)
    dims = [*(part.dim for part in named), *complete]
    indices = places(tracer, arrays, shape)
    if dims != sorted(dims) and math.prod(shape) == 1:
        at = tuple(part.dim for part in named)
        return tracer.emit(tracer.op("TensorScatterUpdate", dims=at), x, indices, updates)
    turned = transposed(tracer, x, dims)
    written = tracer.emit(tracer.op("TensorScatterUpdate"), turned, indices, updates)
    return transposed(tracer, written, [dims.index(d) for d in range(len(dims))])


def _array(tracer: Tracer, part: IndexEntry, front: list[tuple[Label, int]]) -> IndexEntry:
    """Which elements of its dimension a part chooses, as an array that broadcasts over `front`."""
    if part.kind == "element":
        return IndexEntry("places", part.place, part.dim, chosen=np.asarray(part.start))
    if part.kind == "slice":
        chosen = part.start + part.step * np.arange(part.count)
        shape = tuple(size if label == ("slice", part.dim) else 1 for label, size in front)
        return IndexEntry("places", part.place, part.dim, chosen=chosen.reshape(shape))
    spread = [i for i, (label, _) in enumerate(front) if label[0] == "places"]
    own = part.chosen_shape
    padded = [1] * len(front)
    for place, size in zip(spread[len(spread) - len(own) :], own, strict=True):
        padded[place] = size
    chosen = part.chosen
    if isinstance(chosen, Value):
        return IndexEntry("places", part.place, part.dim, chosen=reshape(tracer, chosen, tuple(padded)))
    return IndexEntry("places", part.place, part.dim, chosen=np.asarray(chosen).reshape(padded))
