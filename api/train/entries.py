"""A checkpoint is made of entries: the parameters and further values that a script hands over, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter, require_distinct_names
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError
from mspc.api.nn.cell import Cell
from mspc.checkpoint.mindspore_file import Entry
from mspc.checkpoint.stored_tensors import box_at, extent
from mspc.checkpoint.writing import TensorSlice
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, dtype_of

__all__: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedValue:
    """A value that is to be saved, as it was when it was taken. layout: how the ranks hold it, None for a global
    tensor."""

    name: str
    global_type: TensorType
    array: np.ndarray
    layout: Layout | None = None

    def slice_of(self, rank: int) -> TensorSlice:
        box = box_at(self.layout, rank, self.global_type.shape)
        layout = "" if self.layout is None else str(self.layout)
        return TensorSlice(self.name, self.global_type, box.begin, extent(box), layout, lambda: self.array)

    def entry(self) -> Entry:
        """For MindSpore's format."""
        return Entry(self.name, TensorType(self.global_type.dtype, self.array.shape), lambda: self.array)


def entries_of(save_obj: Any) -> dict[str, Any]:
    """The values of a Cell, a dict or a list by name.

    Raises TypeError for anything else, ValueError for two parameters of one name."""
    if isinstance(save_obj, Cell):
        require_distinct_names(save_obj.parameters_and_places())
        return {parameter.name: parameter for parameter in save_obj.get_parameters()}
    if isinstance(save_obj, Mapping):
        return dict(save_obj)
    if isinstance(save_obj, (list, tuple)):
        numbered = [(f"element {i}", entry) for i, entry in enumerate(save_obj) if isinstance(entry, Parameter)]
        require_distinct_names(numbered)
        entries: dict[str, Any] = {}
        for entry in save_obj:
            if isinstance(entry, Parameter):
                entries[entry.name] = entry
            elif isinstance(entry, Mapping) and {"name", "data"} <= entry.keys():
                entries[entry["name"]] = entry["data"]
            else:
                raise ApiTypeError(f'save_checkpoint: {entry!r} is no {{"name": ..., "data": ...}}')
        return entries
    raise ApiTypeError(f"save_checkpoint takes a Cell, a dict or a list, not {type(save_obj).__name__}")


def taken(
    entries: Mapping[str, Any], gathered: bool, copied: bool, choice: Callable[[str], bool] | None = None,
    writes: Callable[[int, Layout | None], bool] = lambda number, layout: True,
) -> list[SavedValue]:  # fmt: skip
    """The values now.

    Args:
        gathered: what ranks hold slices of is gathered; then all ranks do this together, while one may fail later.
        copied: none of the arrays is one that further training changes. choice: which names are wanted.
        writes: whether this rank writes an entry, by its place and its layout; it is not asked about global tensors.

    Raises:
        TypeError: a name is no string, or a value no tensor.
    """
    found: list[SavedValue] = []
    for number, (name, value) in enumerate(entries.items()):
        if not isinstance(name, str):
            raise ApiTypeError(f"save_checkpoint: the name of a parameter must be a string, not {name!r}")
        if choice is not None and not choice(name):
            continue
        if gathered or not isinstance(value, Parameter):
            array = value.fill_slices() if isinstance(value, Tensor) else value
            if gathered or writes(number, None):
                found.append(_taken(name, np.array(array, order="C"), None))
            continue
        if not value.is_here:
            continue
        layout, own = value.part()
        if writes(number, layout):
            array = np.array(own, order="C") if copied else np.asarray(own)
            found.append(SavedValue(name, value.type, array, layout))
    return found


def _taken(name: str, array: np.ndarray, layout: Layout | None) -> SavedValue:
    try:
        type = TensorType(dtype_of(array.dtype), array.shape)
    except MspcError:
        raise ApiTypeError(f"save_checkpoint: {name!r} is {array.dtype}, which no tensor can be") from None
    return SavedValue(name, type, array, layout)


def without_texts(
    entries: Mapping[str, Any], append: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """(the tensors of both, the texts that are appended)."""
    texts = {name: value for name, value in (append or {}).items() if isinstance(value, str)}
    return {**entries, **{n: v for n, v in (append or {}).items() if n not in texts}}, texts


def spread(rank: int, size: int) -> Callable[[int, Layout | None], bool]:
    """Which entries a rank writes where each slice is written once: holders of a slice take turns."""

    def writes(number: int, layout: Layout | None) -> bool:
        holders: Sequence[int] = range(size) if layout is None else layout.group(layout.unused, rank)
        return holders[number % len(holders)] == rank

    return writes
