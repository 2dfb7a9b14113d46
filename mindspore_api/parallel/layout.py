"""Layouts with names of axes, and `shard` and `reshard`, which accept them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

from mspc.ir.diagnostics import html_table
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import INTERLEAVED, SHOWN_RANKS, NamedLayout
from mspc.ir.text.limits import MAX_DIMENSIONS, MAX_RANKS
from mspc.ir.types import product_exceeds
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.common.parameter import checked_plan
from mspc.mindspore_api.context import PYNATIVE_MODE, get_context
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.ops.primitive import check_strategy
from mspc.mindspore_api.placement import note_shard_options

__all__ = ["Layout", "shard"]

NOT_SHARDED = "None"
"""The name for a dimension that is not sharded."""


class Layout:
    """A mesh of ranks, row-major, with named axes.

    `layout("dp", ("sp", "mp"), "None")` is the layout of a tensor of three dimensions: the first is sharded by axis
    "dp", the second by "sp" (into the larger slices) and "mp", the third is replicated. An axis "interleaved_parallel"
    has no ranks: every rank may process its slice in parts, and slices do not change.

    Args:
        device_matrix: sizes of the axes. alias_name: their names, all different.
        rank_list: only the ranks from 0 to their number less one are supported.

    Raises:
        TypeError: an argument is no tuple, a size no integer, a name no string. ValueError: sizes and names do not fit,
            a name is empty, "None" or given twice.
    """

    def __init__(self, device_matrix: Any, alias_name: Any, rank_list: Any = None) -> None:
        if not isinstance(device_matrix, tuple):
            raise ApiTypeError(f"Layout: device_matrix must be a tuple of integers, not {device_matrix!r}")
        if not isinstance(alias_name, tuple):
            raise ApiTypeError(
                f"Layout: alias_name must be a tuple of strings, not {alias_name!r}",
                [f"write ({alias_name!r},)"] if isinstance(alias_name, str) else (),
            )
        if len(device_matrix) > MAX_DIMENSIONS:
            raise ApiValueError(f"Layout: device_matrix has {len(device_matrix)} axes, more than {MAX_DIMENSIONS}")
        for size in device_matrix:
            if isinstance(size, bool) or not isinstance(size, int):
                raise ApiTypeError(f"Layout: device_matrix holds {size!r}, not an integer")
            if size < 1:
                raise ApiValueError(f"Layout: device_matrix {device_matrix} has an axis of size {size}")
        if product_exceeds(device_matrix, MAX_RANKS):
            raise ApiValueError(f"Layout: device_matrix is of more than {MAX_RANKS} ranks")
        for alias in alias_name:
            if not isinstance(alias, str):
                raise ApiTypeError(f"Layout: alias_name holds {alias!r}, not a string")
            if not alias or alias == NOT_SHARDED:
                raise ApiValueError(f"Layout: {alias!r} cannot name an axis")
        if len(device_matrix) != len(alias_name) or not device_matrix:
            raise ApiValueError(
                f"Layout: device_matrix {device_matrix} has {len(device_matrix)} axes, "
                f"alias_name {len(alias_name)} names"
            )
        if len(set(alias_name)) != len(alias_name):
            raise ApiValueError(f"Layout: alias_name {alias_name} holds a name twice")
        if INTERLEAVED in alias_name[:-1]:
            raise ApiValueError(f"Layout: {INTERLEAVED!r} must be the last of alias_name {alias_name}")
        self.device_matrix = device_matrix
        self.alias_name = alias_name
        last = alias_name[-1] == INTERLEAVED
        self._interleaved = device_matrix[-1] if last else 1
        self._axes = len(alias_name) - last
        if not self._axes:
            raise ApiValueError(f"Layout: {INTERLEAVED!r} is no axis of ranks; name one beside it")
        self.rank_list = list(range(math.prod(device_matrix[: self._axes])))
        if rank_list is not None and list(rank_list) != self.rank_list:
            raise ApiValueError("Layout: rank_list other than 0, 1, 2, ... is not supported")

    def __call__(self, *tensor_map: Any) -> NamedLayout:
        """Return the layout of a tensor: per dimension the name of an axis, a tuple of names, or "None". Raise
        TypeError if an entry is neither; ValueError for an unknown name, or an axis used twice."""
        used: list[str] = []
        entries: list[int | tuple[int, ...]] = []
        for dimension, entry in enumerate(tensor_map):
            if isinstance(entry, tuple):
                if not entry:
                    raise ApiValueError(f'Layout: dimension {dimension} names no axis; write "None" to replicate it')
                found = tuple(self._axis(alias, dimension, used) for alias in entry if alias != NOT_SHARDED)
                entries.append(tuple(axis for axis in found if axis >= 0) or -1)
            else:
                entries.append(-1 if entry == NOT_SHARDED else self._axis(entry, dimension, used))
        rank_axes = slice(self._axes)
        sides = [entry if isinstance(entry, tuple) else (entry,) for entry in tensor_map]
        interleaved_at = next((i for i, side in enumerate(sides) if INTERLEAVED in side), -1)
        return NamedLayout(
            self.device_matrix[rank_axes], self.alias_name[rank_axes], tuple(entries), self._interleaved, interleaved_at
        )

    def _axis(self, alias: Any, dimension: int, used: list[str]) -> int:
        if not isinstance(alias, str):
            raise ApiTypeError(
                f"Layout: dimension {dimension} is {alias!r}, not the name of an axis or a tuple of them"
            )
        if alias not in self.alias_name:
            raise ApiValueError(
                f"Layout: dimension {dimension} names the unknown axis {alias!r}",
                [f'the axes are {", ".join(map(repr, self.alias_name))}; "None" replicates a dimension'],
            )
        if alias in used:
            raise ApiValueError(f"Layout: axis {alias!r} is used twice, the second time for dimension {dimension}")
        used.append(alias)
        return -1 if alias == INTERLEAVED else self._axes - 1 - self.alias_name.index(alias)

    def to_dict(self) -> dict[str, Any]:
        """Return the mesh as plain data."""
        return {
            "device_matrix": self.device_matrix,
            "alias_name": self.alias_name,
            "interleaved_parallel": self._interleaved > 1,
            "rank_list": self.rank_list,
        }

    def _repr_html_(self) -> str:
        sizes, names = self.device_matrix[: self._axes], self.alias_name[: self._axes]
        places = itertools.islice(itertools.product(*map(range, sizes)), SHOWN_RANKS)
        mesh = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
        return html_table(f"mesh {mesh}", ["rank", *names], ((rank, *place) for rank, place in enumerate(places)))

    def __repr__(self) -> str:
        return f"Layout(device_matrix={self.device_matrix}, alias_name={self.alias_name})"


def shard(
    fn: Any, in_strategy: Any, out_strategy: Any = None, parameter_plan: Any = None, device: str = "", level: int = 0
) -> ShardedFunction:
    """Return `fn` with its inputs sharded by `in_strategy`, one tuple or Layout per tensor.

    Args:
        parameter_plan: sharding of parameters of the Cell (or of the Cell with the method `fn`), by name or path as
            "self.dense.weight". device, level: change nothing, as a warning says.

    Called by itself it takes and returns global tensors, as on one device, unless the script has set `dataset_strategy`
    or `full_batch`. In PyNative mode such a function calls no other one, as in MindSpore.

    Raises TypeError if `fn` is not callable, or a strategy is none; ValueError if a strategy is impossible, or a
    parameter is none of the Cell's.
    """
    if not isinstance(fn, Cell) and not callable(fn):
        raise ApiTypeError(f"shard takes a Cell or a function, not {type(fn).__name__}")
    owner = fn if isinstance(fn, Cell) else getattr(fn, "__self__", None)
    if parameter_plan and not isinstance(owner, Cell):
        raise ApiValueError("shard: a parameter_plan needs a Cell or its method; a function holds no parameters")
    note_shard_options("shard", device, level)
    return ShardedFunction(
        fn,
        check_strategy(in_strategy, "shard: in_strategy"),
        check_strategy(out_strategy, "shard: out_strategy"),
        checked_plan(owner, parameter_plan, "shard"),
        get_context("mode") == PYNATIVE_MODE,
    )


@dataclass(frozen=True)
class ShardedFunction:
    """`fn` with strategies: in_strategy per input, out_strategy per output, parameter_plan as (Parameter, strategy).
    in_pynative: it was made in PyNative mode.

    Called by itself it takes and returns global tensors, the same on every rank, as on one device, unless the script
    has set `dataset_strategy` or `full_batch`.
    """

    takes_global_inputs: ClassVar[bool] = True

    fn: Callable[..., Any]
    in_strategy: tuple[Any, ...] | None
    out_strategy: tuple[Any, ...] | None = None
    parameter_plan: tuple[tuple[Any, Any], ...] = ()
    in_pynative: bool = False

    def __call__(self, *args: Any) -> Any:
        return call_handler.current().call(self, args)
