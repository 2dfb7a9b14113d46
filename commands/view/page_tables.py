"""Texts, types, layouts and call stacks that many nodes share are in the page once, and nodes name their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from mspc.ir.diagnostics import Frames, Location
from mspc.ir.graph import element_types
from mspc.ir.layout import Layout
from mspc.ir.types import Type

LONGEST = 20_000
"""Characters of a text that a page holds; of longer ones the begin, and how long they are."""


def shortened(text: str) -> str:
    """A text as the page holds it."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"


class NodeTables:
    """What the nodes of all graphs of a page name by number; -1 is nothing.

    `as_dict` is `strings`; `types` as [text, [[dtype, shape, bytes] of every tensor]]; `layouts` as [mesh, axes of
    every dimension, axes of partial results, reduction]; `frames` as [file, line, column, end, source line]; `stacks`
    of frames, the innermost first.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {name: [] for name in ("strings", "types", "layouts", "frames", "stacks")}
        self._numbers: dict[tuple[str, Hashable], int] = {}

    def string(self, text: str) -> int:
        """The number of a text, -1 of an empty one."""
        return self._number("strings", text, lambda: shortened(text)) if text else -1

    def type(self, type: Type) -> int:
        """The number of a type."""
        return self._number("types", type, lambda: [
            shortened(str(type)), [[str(t.dtype), list(t.shape), t.nbytes] for t in element_types(type)]
        ])  # fmt: skip

    def layout(self, layout: Layout | None) -> int:
        """The number of a layout."""
        if layout is None:
            return -1
        return self._number("layouts", layout, lambda: [
            list(layout.mesh), [list(axes) for axes in layout.dims], list(layout.partial), layout.reduction
        ])  # fmt: skip

    def layouts(self, layouts: Sequence[Layout | None]) -> list[int]:
        """The numbers of several layouts."""
        return [self.layout(layout) for layout in layouts]

    def stack(self, frames: Frames) -> int:
        """The number of a call stack, -1 of none."""
        if not frames:
            return -1
        return self._number("stacks", frames, lambda: [self._frame(frame) for frame in frames])

    def _frame(self, frame: Location) -> int:
        return self._number("frames", frame, lambda: [
            self.string(frame.file), frame.line, frame.column, frame.end_column, self.string(frame.text)
        ])  # fmt: skip

    def _number(self, table: str, key: Hashable, made: Any) -> int:
        found = self._numbers.get((table, key))
        if found is None:
            row = made()
            rows = self._rows[table]
            found = self._numbers[table, key] = len(rows)
            rows.append(row)
        return found

    def as_dict(self) -> dict[str, list[Any]]:
        """All tables by name."""
        return self._rows
