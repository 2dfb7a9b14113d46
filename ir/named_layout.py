"""A named layout is what a user writes with axis names (`Layout((2, 4), ("dp", "mp"))("dp", "mp")`), as the strategy of
one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.notebook import html_table

INTERLEAVED = "interleaved_parallel"
"""The name of an axis that is none of ranks: every rank computes its slice in so many parts, one after the other."""


SHOWN_RANKS = 64
"""The most rows of a table in a notebook."""


@dataclass(frozen=True, slots=True)
class NamedLayout:
    """One tensor's placement in MindSpore's terms.

    device_matrix: sizes of the mesh axes, row-major. alias_name: their names.
    tensor_map: per tensor dimension an axis counted from the right (0 is the last), a tuple of them (the first the
        most significant), or -1 for a dimension that is not sharded.
    interleaved: size of the axis `INTERLEAVED` that the user named beside these. It changes no slice; whether parts of
        a slice run one after the other is for the scheduler to say.
    interleaved_at: the dimension whose slices have these parts; -1 for none.
    """

    device_matrix: tuple[int, ...]
    alias_name: tuple[str, ...]
    tensor_map: tuple[int | tuple[int, ...], ...]
    interleaved: int = 1
    interleaved_at: int = -1

    @property
    def ranks(self) -> int:
        return math.prod(self.device_matrix)

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Per tensor dimension the mesh axes counted from the left, major to minor."""
        last = len(self.device_matrix) - 1
        entries = [entry if isinstance(entry, tuple) else (entry,) for entry in self.tensor_map]
        return tuple(tuple(last - a for a in entry if a >= 0) for entry in entries)

    @property
    def strategy(self) -> tuple[int, ...]:
        """Number of slices per dimension."""
        return tuple(math.prod(self.device_matrix[a] for a in axes) for axes in self.axes)

    def to_layout(self) -> Layout:
        return Layout.of(self.device_matrix, self.axes)

    def _repr_html_(self) -> str:
        """A table for notebooks: the axes of every dimension, and which slice every rank has."""
        layout = self.to_layout()
        rows = [
            (rank, *(f"{at} of {count}" for at, count in zip(layout.slice_index(rank), self.strategy, strict=True)))
            for rank in range(min(self.ranks, SHOWN_RANKS))
        ]
        names = [", ".join(self.alias_name[a] for a in axes) or "replicated" for axes in self.axes]
        mesh = ", ".join(f"{name}={size}" for name, size in zip(self.alias_name, self.device_matrix, strict=True))
        return html_table(f"slices over {mesh}", ["rank", *(f"dimension {i}: {n}" for i, n in enumerate(names))], rows)

    def to_dict(self) -> dict[str, Any]:
        """What it is made of, by MindSpore's names."""
        return {
            "device_matrix": self.device_matrix, "tensor_map": self.tensor_map,
            "interleaved_parallel": self.interleaved > 1, "alias_name": self.alias_name,
            "rank_list": list(range(self.ranks)),
        }  # fmt: skip

    def __str__(self) -> str:
        matrix = ", ".join(map(str, self.device_matrix))
        entries = ", ".join(f"({', '.join(map(str, e))})" if isinstance(e, tuple) else str(e) for e in self.tensor_map)
        return f"{{device_matrix: ({matrix}), tensor_map: ({entries}), alias_name: ({', '.join(self.alias_name)})}}"


Strategy = tuple[int, ...] | NamedLayout
"""How the user shards one tensor."""


def spread(strategy: Sequence[Any]) -> list[Any]:
    """One entry per tensor: the entry of a tuple of tensors, as Concat's, holds one for each."""
    found: list[Any] = []
    for entry in strategy:
        if isinstance(entry, tuple) and entry and isinstance(entry[0], (tuple, NamedLayout)):
            found += cast("tuple[Any, ...]", entry)
        else:
            found.append(entry)
    return found
