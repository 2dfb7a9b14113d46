"""Subscripts of tensors and of values known at compile time, and `x[index] = value` for tensors of the graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.argument_binding import as_it_is
from mspc.compiler.frontend.operators import is_graph_value, reshape
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import COMPUTED, contains_tensor, describe, way_of
from mspc.ir.diagnostics import kind_of, value_repr
from mspc.ir.graph import Constant, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import LONGEST_LIST
from mspc.ir.types import BOOL, INT64
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.container import CellList

Shape = tuple[int, ...]


@dataclass(frozen=True)
class IndexEntry:
    """One entry of an index, applied to dimension `dim`, which is -1 for a new dimension.

    kind: "new", "slice", "element" (the one at `start`), "places" (an array of integers), or "mask" (a Bool tensor over
    this and the next dimensions). place: number of the entry in the index.
    """

    kind: str
    place: int
    dim: int = -1
    start: int = 0
    step: int = 1
    count: int = 1
    chosen: np.ndarray | Value | None = None

    def takes_all(self, shape: Shape) -> bool:
        """Return whether the entry takes all elements in their order."""
        return self.kind == "slice" and (self.start, self.step, self.count) == (0, 1, shape[self.dim])

    @property
    def is_known(self) -> bool:
        return not isinstance(self.chosen, Value)

    @property
    def chosen_shape(self) -> Shape:
        """Shape of the array of integers; () for an element."""
        return () if self.chosen is None else tuple(self.chosen.shape)

    @property
    def stop(self) -> int:
        """End of a slice or element, in the form that a strided slice takes for a dimension of any size."""
        return self.start + self.count * self.step if self.step > 0 else self.start + (self.count - 1) * self.step - 1


def parts_of(tracer: Tracer, shape: Shape, index: Any) -> list[IndexEntry]:
    """Return the entries of an index, in order, with `...` written out. Raise MspcError if the index does not fit."""
    entries = [_entry(tracer, entry) for entry in (index if isinstance(index, tuple) else (index,))]
    found: list[IndexEntry] = []
    dim = 0
    for place, entry in _expanded(tracer, shape, entries):
        found.append(_part(tracer, shape, entry, place, dim))
        dim += _dimensions(entry)
    return found


def without_masks(tracer: Tracer, parts: list[IndexEntry], wanted: str) -> list[IndexEntry]:
    """Return the entries with masks converted to arrays of integers. Raise MspcError if a mask is not known at compile
    time; `wanted` is the note that says how to avoid it."""
    found: list[IndexEntry] = []
    for part in parts:
        if part.kind != "mask":
            found.append(part)
            continue
        if not isinstance(part.chosen, np.ndarray):
            message = "how many elements the mask chooses is only known at run time"
            raise tracer.error(message, [wanted], kind=IndexError)
        chosen = np.nonzero(part.chosen)
        found += [IndexEntry("places", part.place, part.dim + i, chosen=places) for i, places in enumerate(chosen)]
    return found


def _entry(tracer: Tracer, entry: Any) -> Any:
    """Convert an entry: known tensors and lists to arrays, tensors of the graph to graph values."""
    if is_graph_value(entry):
        value = tracer.value(entry)
        return value.value if isinstance(value, Constant) else value
    if isinstance(entry, Tensor):
        return entry.array
    if isinstance(entry, list | tuple):
        if contains_tensor(entry):
            raise tracer.error(
                f"the index holds {describe(entry)} with tensors inside", ["use ops.stack"], kind=TypeError
            )
        try:
            array = np.asarray(entry if len(entry) else np.zeros(0, np.int64))
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind not in "bui":
            raise tracer.error(
                f"the list {entry!r} cannot be an index; it must hold integers or Bool", kind=IndexError, code="E0212"
            )
        return array
    return entry


def _expanded(tracer: Tracer, shape: Shape, entries: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return (number, entry) pairs with `...` written out and full dimensions added at the end."""
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise tracer.error("an index holds '...' more than once", kind=IndexError, code="E0212")
    named = sum(_dimensions(entry) for entry in entries)
    if named > len(shape):
        raise tracer.error(
            f"{named} indices for a tensor of {len(shape)} dimensions, whose shape is {shape}", kind=IndexError
        )
    rest = [(dots[0] if dots else len(entries), slice(None))] * (len(shape) - named)
    numbered = list(enumerate(entries))
    return [*numbered[: dots[0]], *rest, *numbered[dots[0] + 1 :]] if dots else [*numbered, *rest]


def _dimensions(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    return len(entry.shape) if _is_mask(entry) else 1


def _is_mask(entry: Any) -> bool:
    if isinstance(entry, Value):
        return entry.tensor_type.dtype == BOOL
    return isinstance(entry, np.ndarray) and entry.dtype == bool


def _part(tracer: Tracer, shape: Shape, entry: Any, place: int, dim: int) -> IndexEntry:
    if entry is None:
        return IndexEntry("new", place)
    if _is_mask(entry):
        of, named = tuple(entry.shape), shape[dim : dim + len(entry.shape)]
        if not of or of != named:
            message = f"a mask of shape {of} cannot be an index of dimensions whose shape is {named}"
            raise tracer.error(message, kind=IndexError)
        return IndexEntry("mask", place, dim, chosen=entry)
    if isinstance(entry, slice):
        bounds = [_integer(tracer, part, dim) for part in (entry.start, entry.stop, entry.step)]
        if bounds[2] == 0:
            raise tracer.error(f"the step of the slice of dimension {dim} is 0", kind=ValueError)
        taken = range(*slice(*bounds).indices(shape[dim]))
        return IndexEntry("slice", place, dim, taken.start, taken.step if len(taken) > 1 else 1, len(taken))
    if isinstance(entry, Value) or (isinstance(entry, np.ndarray) and entry.shape != ()):
        return IndexEntry("places", place, dim, chosen=_places(tracer, entry, shape[dim], dim))
    return IndexEntry("element", place, dim, _element(tracer, entry, shape[dim], dim))


def _places(tracer: Tracer, entry: Any, size: int, dim: int) -> Any:
    in_graph = isinstance(entry, Value)
    dtype = entry.tensor_type.dtype if in_graph else entry.dtype
    if not (dtype.is_integer if in_graph else dtype.kind in "iu"):
        what = "a tensor" if in_graph else "an array"
        raise tracer.error(
            f"{what} of {dtype} cannot be an index; it must hold integers or Bool", kind=IndexError, code="E0212"
        )
    if in_graph:
        return entry
    wide = entry.astype(np.int64)
    wrong = wide[(wide < -size) | (wide >= size)]
    if wrong.size:
        raise tracer.error(
            f"index {wrong.reshape(-1)[0]} is out of range for dimension {dim}, whose size is {size}",
            kind=IndexError,
            code="E0212",
        )
    return np.where(wide < 0, wide + size, wide)


def _element(tracer: Tracer, entry: Any, size: int, dim: int) -> int:
    if isinstance(entry, bool | np.bool_) or entry is None:
        raise tracer.error(f"{entry!r} cannot be an index", kind=IndexError, code="E0212")
    place = _integer(tracer, entry, dim)
    assert place is not None
    if not -size <= place < size:
        message = f"index {value_repr(place)} is out of range for dimension {dim}, whose size is {size}"
        raise tracer.error(message, kind=IndexError, code="E0212")
    return place % size


def _integer(tracer: Tracer, part: Any, dim: int) -> int | None:
    if part is None:
        return None
    if isinstance(part, Constant):
        part = part.value
    if is_graph_value(part):
        raise tracer.error(
            f"the bound of dimension {dim} is {describe(part)}; the bounds of a slice must be known at compile time"
        )
    if isinstance(part, Tensor) and part.size == 1:
        part = part.item()
    try:
        return operator.index(part.item() if isinstance(part, np.ndarray) and part.size == 1 else part)
    except TypeError:
        raise tracer.error(
            f"the index of dimension {dim} is {describe(part)}, not an integer", kind=IndexError
        ) from None


def subscript(tracer: Tracer, base: Any, index: Any) -> Any:
    """Evaluate `base[index]`. The tracer must have been given the place. Raise MspcError if the index does not fit, or
    its kind is not supported."""
    if way_of(base, index) is not None:
        return tracer.either(lambda *found: subscript(tracer, *found), base, index)
    if is_graph_value(base):
        found = tensor_subscript(tracer, tracer.value(base), index)
        if not isinstance(found, Parameter):
            return found
        return as_it_is(tracer, found)
    if isinstance(base, Tensor | np.ndarray) and contains_tensor(index):
        return tensor_subscript(tracer, tracer.value(base), index)
    by_identity = isinstance(base, dict) and not contains_tensor(index, COMPUTED)
    if contains_tensor(index) and not by_identity:
        if isinstance(base, dict):
            raise tracer.error("a tensor cannot be a key", kind=TypeError)
        if is_graph_value(index) and isinstance(base, list | tuple | CellList):
            from mspc.compiler.frontend.branches import element_at

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
    """Select elements of a tensor by an index, as NumPy does. Raise MspcError if the index does not fit, or the number
    of selected elements is not known at compile time."""
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
"""A result dimension of an index: ("slice", dimension), ("places", number) or ("new", number of the entry)."""


def results_of(tracer: Tracer, parts: list[IndexEntry]) -> list[tuple[Label, int]]:
    """Return the result dimensions of an index, with their sizes. The dimensions of arrays take the arrays' place, or
    come first if a slice is between the arrays. (An element counts as an array next to arrays.)"""
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
    """Return the broadcast shape of the arrays of an index. Raise MspcError if they do not broadcast."""
    shapes = [part.chosen_shape for part in chosen]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = ", ".join(map(str, shapes))
        raise tracer.error(f"the arrays of an index have shapes that do not fit: {shown}", kind=IndexError) from None


def sliced(tracer: Tracer, x: Value, parts: list[IndexEntry]) -> Value:
    """Apply the slices and elements of an index in one StridedSlice. Dimensions indexed by arrays are taken whole."""
    fields = slice_fields(x.shape, parts)
    return x if fields is None else tracer.emit(tracer.op("StridedSlice", **fields), x)


def slice_fields(shape: tuple[int, ...], parts: list[IndexEntry]) -> dict[str, Any] | None:
    """Return the fields of the StridedSlice for the slices and elements of an index; None if everything is taken."""
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
    """Return x with its dimensions in this order."""
    return x if order == list(range(len(order))) else tracer.emit(tracer.op("Transpose", perm=tuple(order)), x)


def places(tracer: Tracer, chosen: list[IndexEntry], shape: tuple[int, ...]) -> Value:
    """Return the arrays of an index, broadcast to a shape and stacked along a new last dimension: indices[..., k]."""
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
    """Return the elements of a value that is iterated over at compile time. For a tensor these are its slices along the
    first dimension. Raise MspcError if it has no elements, or its order of iteration is not defined."""
    if tracer.is_tensor(value):
        tensor = tracer.value(value)
        if not tensor.shape:
            raise tracer.error(f"{what} goes over a tensor without dimensions", kind=TypeError, code="E0215")
        return [subscript(tracer, tensor, i) for i in range(tensor.shape[0])]
    if isinstance(value, set | frozenset):
        raise tracer.error(
            f"{what} goes over a set, whose order is not defined", ["use sorted(...)"], kind=TypeError, code="E0215"
        )
    if isinstance(value, range) and value[LONGEST_LIST:]:
        raise tracer.error(
            f"{what} has more than {LONGEST_LIST} iterations at compile time", kind=ValueError, code="E0206"
        )
    try:
        return list(value)
    except TypeError:
        raise tracer.error(
            f"{what} goes over {describe(value)}, which has no elements", kind=TypeError, code="E0215"
        ) from None


def with_elements(tracer: Tracer, x: Value, index: Any, value: Any) -> Value:
    """Return x with the selected elements replaced by `value`, broadcast and cast to the element type of x. Raise
    MspcError if the index or the shape of the value does not fit."""
    given = tracer.cast(tracer.value(value, x.tensor_type.dtype), x.tensor_type.dtype)
    parts = parts_of(tracer, x.shape, index)
    masks = [part for part in parts if part.kind == "mask"]
    if len(masks) == 1 and all(part is masks[0] or part.takes_all(x.shape) for part in parts):
        return _masked_assignment(tracer, x, masks[0], given)
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
    """Broadcast a value to a shape. Surplus leading dimensions of size 1 are dropped."""
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


def _masked_assignment(tracer: Tracer, x: Value, part: IndexEntry, value: Value) -> Value:
    """Assign through a mask. A value of one row is selected elementwise; of several rows, the n-th goes to the n-th
    true element."""
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
    """Assign through arrays of integers. Full dimensions are moved last, so that one array addresses every other
    element."""
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
    """Return a part as an array of the indices it takes in its dimension, broadcastable over `front`."""
    chosen = part.chosen
    if part.kind == "element":
        chosen = np.asarray(part.start)
    elif part.kind == "slice":
        shape = tuple(size if label == ("slice", part.dim) else 1 for label, size in front)
        chosen = (part.start + part.step * np.arange(part.count)).reshape(shape)
    else:
        spread = [i for i, (label, _) in enumerate(front) if label[0] == "places"]
        own = part.chosen_shape
        padded = [1] * len(front)
        for place, size in zip(spread[len(spread) - len(own) :], own, strict=True):
            padded[place] = size
        in_graph = isinstance(chosen, Value)
        chosen = reshape(tracer, chosen, tuple(padded)) if in_graph else np.asarray(chosen).reshape(padded)
    return IndexEntry("places", part.place, part.dim, chosen=chosen)
