"""Compiles subscripts: of tensors, to one StridedSlice, Gather or GatherNd, and of what is known at compile time."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.nn.cell import Cell
from mspc.api.nn.container import CellList
from mspc.compiler.frontend.index_parts import IndexEntry, parts_of, without_masks
from mspc.compiler.frontend.operators import is_graph_value, reshape
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import COMPUTED, contains_tensor, describe, way_of
from mspc.ir.diagnostics import kind_of
from mspc.ir.graph import Parameter, Value
from mspc.ir.text.limits import LONGEST_LIST
from mspc.ir.types import INT64


def subscript(tracer: Tracer, base: Any, index: Any) -> Any:
    """`base[index]`; the place must have been given to the tracer.

    Raises:
        MspcError: the index does not fit, or is of a kind that is not supported.
    """
    if way_of(base, index) is not None:
        return tracer.either(lambda *found: subscript(tracer, *found), base, index)
    if is_graph_value(base):
        found = tensor_subscript(tracer, tracer.value(base), index)
        if not isinstance(found, Parameter):
            return found
        from mspc.compiler.frontend.earlier_parameters import as_it_is  # late: few slices take all

        return as_it_is(tracer, found)
    if isinstance(base, Tensor | np.ndarray) and contains_tensor(index):
        return tensor_subscript(tracer, tracer.value(base), index)
    by_identity = isinstance(base, dict) and not contains_tensor(index, COMPUTED)
    if contains_tensor(index) and not by_identity:
        if isinstance(base, dict):
            raise tracer.error("a tensor cannot be a key", kind=TypeError)
        if is_graph_value(index) and isinstance(base, list | tuple | CellList):
            from mspc.compiler.frontend.chosen import element_at

            return element_at(tracer, base, tracer.value(index))
        raise tracer.error(
            f"the index is {describe(index)}; {describe(base)} takes an index known at compile time",
            kind=TypeError,
        )
    try:
        return base[index]
    except Exception as error:
        raise tracer.error(_complaint(base, index, error), getattr(error, "notes", ()), kind=kind_of(error)) from None


def _complaint(base: Any, index: Any, error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no key {index!r}"
    if isinstance(error, IndexError) and hasattr(base, "__len__"):
        what = type(base).__name__ if isinstance(base, Cell | tuple | list | str) else "value"
        return f"index {index} is out of range: the {what} has {len(base)} elements"
    if isinstance(error, TypeError) and not hasattr(base, "__getitem__"):
        return f"{describe(base)} has no elements"
    return getattr(error, "message", None) or str(error)


def tensor_subscript(tracer: Tracer, x: Value, index: Any) -> Any:
    """The elements of a tensor that an index chooses, as NumPy chooses them.

    Raises:
        MspcError: the index does not fit, or how many elements it chooses is not known at compile time.
    """
    instead = (
        "use ops.select(mask, x, other), assign through the mask: x[mask] = value, or sum up (x * mask).sum(); outside "
        "of a compiled function x[mask] has a shape"
    )
    parts = without_masks(tracer, parts_of(tracer, x.shape, index), instead)
    order = results_of(tracer, parts)
    sliced_x = sliced(tracer, x, parts)
    chosen = [part for part in parts if part.kind == "places"]
    if not chosen:
        return reshape(tracer, sliced_x, tuple(size for _, size in order))
    left = [part.dim for part in parts if part.dim >= 0 and part.kind != "element"]
    at = [left.index(part.dim) for part in chosen]
    shape = broadcast_shape(tracer, chosen)
    spread = [("places", i) for i in range(len(shape))]
    if len(chosen) == 1:
        found = tracer.emit(tracer.op("Gather", axis=at[0]), sliced_x, _operand(tracer, chosen[0]))
        have = [label for dim in left for label in (spread if dim == chosen[0].dim else [("slice", dim)])]
    else:
        rest = [d for d in range(len(left)) if d not in at]
        turned = transposed(tracer, sliced_x, [*at, *rest])
        found = tracer.emit(tracer.op("GatherNd"), turned, places(tracer, chosen, shape))
        have = [*spread, *(("slice", left[d]) for d in rest)]
    wanted = [label for label, _ in order if label[0] != "new"]
    found = transposed(tracer, found, [have.index(label) for label in wanted])
    return reshape(tracer, found, tuple(size for _, size in order))


Label = tuple[str, int]
"""A dimension of what an index chooses: ("slice", dimension), ("places", number) or ("new", number of the entry)."""


def results_of(tracer: Tracer, parts: list[IndexEntry]) -> list[tuple[Label, int]]:
    """The dimensions of what an index chooses, with their sizes: those of arrays are where the arrays are, or in front
    where a slice is between them. (An element counts as an array beside arrays.)"""
    chosen = [part for part in parts if part.kind == "places"]
    shape = broadcast_shape(tracer, chosen)
    spread = [(("places", i), size) for i, size in enumerate(shape)]
    among = sorted({part.place for part in parts if part.kind in ("places", "element")}) if chosen else []
    together = among == list(range(among[0], among[-1] + 1)) if among else True
    found: list[tuple[Label, int]] = [] if together else list(spread)
    for part in parts:
        if part.kind == "slice":
            found.append((("slice", part.dim), part.count))
        elif part.kind == "new":
            found.append((("new", part.place), 1))
        elif among and together and part.place == among[0]:
            found += spread
            spread = []
    return found


def broadcast_shape(tracer: Tracer, chosen: list[IndexEntry]) -> tuple[int, ...]:
    """The shape of arrays of places together. Raises MspcError where they do not fit each other."""
    shapes = [part.chosen_shape for part in chosen]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = ", ".join(map(str, shapes))
        raise tracer.error(f"the arrays of an index have shapes that do not fit: {shown}", kind=IndexError) from None


def sliced(tracer: Tracer, x: Value, parts: list[IndexEntry]) -> Value:
    """x with the slices and the elements taken, in one StridedSlice; all of a dimension where arrays choose."""
    fields = slice_fields(x.shape, parts)
    return x if fields is None else tracer.emit(tracer.op("StridedSlice", **fields), x)


def slice_fields(shape: tuple[int, ...], parts: list[IndexEntry]) -> dict[str, Any] | None:
    """Fields of the StridedSlice of the slices and elements of an index; None where all is taken."""
    dims = [part for part in parts if part.dim >= 0]
    if all(part.takes_all(shape) or part.kind == "places" for part in dims):
        return None
    slices = [
        part if part.kind != "places" else IndexEntry("slice", 0, part.dim, count=shape[part.dim]) for part in dims
    ]
    ends = [part.stop if part.stop >= 0 else -shape[part.dim] - 1 for part in slices]
    return {
        "begin": tuple(part.start for part in slices),
        "end": tuple(ends),
        "strides": tuple(part.step for part in slices),
        "shrink_axis_mask": sum(1 << i for i, part in enumerate(slices) if part.kind == "element"),
    }


def transposed(tracer: Tracer, x: Value, order: list[int]) -> Value:
    """x with its dimensions in this order."""
    return x if order == list(range(len(order))) else tracer.emit(tracer.op("Transpose", perm=tuple(order)), x)


def places(tracer: Tracer, chosen: list[IndexEntry], shape: tuple[int, ...]) -> Value:
    """Arrays of an index, broadcast to a shape, side by side: indices[..., k]."""
    if all(part.is_known for part in chosen):
        known = [np.broadcast_to(np.asarray(part.chosen), shape) for part in chosen]
        return tracer.value(np.stack(known, -1))
    columns: list[Value] = []
    if len(chosen) == 1 and _operand(tracer, chosen[0]).shape == shape:
        return reshape(tracer, _operand(tracer, chosen[0]), (*shape, 1))
    for part in chosen:
        column = tracer.cast(_operand(tracer, part), INT64)
        columns.append(column if column.shape == shape else tracer.emit(tracer.op("BroadcastTo", shape=shape), column))
    return tracer.emit(tracer.op("Stack", axis=-1), *columns)


def _operand(tracer: Tracer, part: IndexEntry) -> Value:
    return part.chosen if isinstance(part.chosen, Value) else tracer.value(np.asarray(part.chosen))


def unpacked(tracer: Tracer, value: Any, what: str) -> list[Any]:
    """The elements of something that is iterated over at compile time; of a tensor, what is at every place of its
    first dimension.

    Raises:
        MspcError: it has no elements, or cannot be iterated over in an order that is always the same.
    """
    if tracer.is_tensor(value):
        tensor = tracer.value(value)
        if not tensor.shape:
            raise tracer.error(f"{what} goes over a tensor without dimensions", kind=TypeError)
        return [subscript(tracer, tensor, i) for i in range(tensor.shape[0])]
    if isinstance(value, set | frozenset):
        raise tracer.error(f"{what} goes over a set, whose order is not defined", ["use sorted(...)"], kind=TypeError)
    if isinstance(value, range) and value[LONGEST_LIST:]:
        raise tracer.error(f"{what} has more than {LONGEST_LIST} iterations at compile time", kind=ValueError)
    try:
        return list(value)
    except TypeError:
        raise tracer.error(f"{what} goes over {describe(value)}, which has no elements", kind=TypeError) from None
