"""Takes an index of a tensor apart: what it says of every dimension, and in which order NumPy puts the results."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.compiler.frontend.operators import is_graph_value
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import contains_tensor, describe
from mspc.ir.diagnostics import value_repr
from mspc.ir.graph import Constant, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL

Shape = tuple[int, ...]


@dataclass(frozen=True)
class IndexEntry:
    """What an index says of dimension `dim`, which is -1 for a new one.

    kind: "new", "slice", "element" (the one at `start`), "places" (those in an array of integers), or "mask" (those of
    this and the next dimensions where a Bool tensor is true).
    place: number of the entry in the index.
    """

    kind: str
    place: int
    dim: int = -1
    start: int = 0
    step: int = 1
    count: int = 1
    chosen: np.ndarray | Value | None = None

    def takes_all(self, shape: Shape) -> bool:
        """Whether all elements are taken in their order."""
        return self.kind == "slice" and (self.start, self.step, self.count) == (0, 1, shape[self.dim])

    @property
    def is_known(self) -> bool:
        return not isinstance(self.chosen, Value)

    @property
    def chosen_shape(self) -> Shape:
        """The shape of the array of integers, () of an element."""
        return () if self.chosen is None else tuple(self.chosen.shape)

    @property
    def stop(self) -> int:
        """The end of a slice or element, as a strided slice takes it for a dimension of any size."""
        return self.start + self.count * self.step if self.step > 0 else self.start + (self.count - 1) * self.step - 1


def parts_of(tracer: Tracer, shape: Shape, index: Any) -> list[IndexEntry]:
    """What the index says, in its order.

    Raises:
        MspcError: the index does not fit.
    """
    entries = [_entry(tracer, entry) for entry in (index if isinstance(index, tuple) else (index,))]
    found: list[IndexEntry] = []
    dim = 0
    for place, entry in _expanded(tracer, shape, entries):
        found.append(_part(tracer, shape, entry, place, dim))
        dim += _dimensions(entry)
    return found


def without_masks(tracer: Tracer, parts: list[IndexEntry], wanted: str) -> list[IndexEntry]:
    """The same with masks as arrays of integers. Raises MspcError where one is not known at compile time; `wanted` says
    what to do instead."""
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
    """An entry with arrays of what is known, and values of the graph else."""
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
            raise tracer.error(f"the list {entry!r} cannot be an index; it must hold integers or Bool", kind=IndexError)
        return array
    return entry


def _expanded(tracer: Tracer, shape: Shape, entries: Sequence[Any]) -> list[tuple[int, Any]]:
    """(number, entry) with `...` written out and full dimensions at the end."""
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise tracer.error("an index holds '...' more than once", kind=IndexError)
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
        return _masked(tracer, shape, entry, place, dim)
    if isinstance(entry, slice):
        start, step, count = _bounds(tracer, entry, shape[dim], dim)
        return IndexEntry("slice", place, dim, start, step, count)
    if isinstance(entry, Value) or (isinstance(entry, np.ndarray) and entry.shape != ()):
        return IndexEntry("places", place, dim, chosen=_places(tracer, entry, shape[dim], dim))
    return IndexEntry("element", place, dim, _element(tracer, entry, shape[dim], dim))


def _masked(tracer: Tracer, shape: Shape, mask: Any, place: int, dim: int) -> IndexEntry:
    named = shape[dim : dim + len(mask.shape)]
    if not mask.shape or tuple(mask.shape) != named:
        raise tracer.error(
            f"a mask of shape {tuple(mask.shape)} cannot be an index of dimensions whose shape is {named}",
            kind=IndexError,
        )
    return IndexEntry("mask", place, dim, chosen=mask)


def _places(tracer: Tracer, entry: Any, size: int, dim: int) -> Any:
    if isinstance(entry, Value):
        if not entry.tensor_type.dtype.is_integer:
            raise tracer.error(
                f"a tensor of {entry.tensor_type.dtype} cannot be an index; it must hold integers or Bool",
                kind=IndexError,
            )
        return entry
    if entry.dtype.kind not in "iu":
        message = f"an array of {entry.dtype} cannot be an index; it must hold integers or Bool"
        raise tracer.error(message, kind=IndexError)
    wide = entry.astype(np.int64)
    wrong = wide[(wide < -size) | (wide >= size)]
    if wrong.size:
        raise tracer.error(
            f"index {wrong.reshape(-1)[0]} is out of range for dimension {dim}, whose size is {size}", kind=IndexError
        )
    return np.where(wide < 0, wide + size, wide)


def _bounds(tracer: Tracer, entry: slice, size: int, dim: int) -> tuple[int, int, int]:
    parts = [_integer(tracer, part, dim) for part in (entry.start, entry.stop, entry.step)]
    if parts[2] == 0:
        raise tracer.error(f"the step of the slice of dimension {dim} is 0", kind=ValueError)
    taken = range(*slice(*parts).indices(size))
    return taken.start, taken.step if len(taken) > 1 else 1, len(taken)


def _element(tracer: Tracer, entry: Any, size: int, dim: int) -> int:
    if isinstance(entry, bool | np.bool_) or entry is None:
        raise tracer.error(f"{entry!r} cannot be an index", kind=IndexError)
    place = _integer(tracer, entry, dim)
    assert place is not None
    if not -size <= place < size:
        message = f"index {value_repr(place)} is out of range for dimension {dim}, whose size is {size}"
        raise tracer.error(message, kind=IndexError)
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
