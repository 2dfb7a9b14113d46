"""Tables of the page: texts, types, layouts and call stacks are stored once, and nodes refer to them by number."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from mspc.commands.facts.rows import shown_file
from mspc.ir.diagnostics import Frames, Location
from mspc.ir.graph import element_types
from mspc.ir.layout import Layout
from mspc.ir.types import Type

LONGEST = 20_000
"""Most characters of a text in a page; a longer one is cut, and its length is added."""


def shortened(text: str) -> str:
    """Return a text as the page contains it, cut after LONGEST characters."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"


class NodeTables:
    """Tables of the values to which the nodes of all graphs of a page refer by number; -1 is none.

    `as_dict` is `strings`; `types` as [text, [[dtype, shape, bytes] of every tensor]]; `layouts` as [mesh, axes of
    every dimension, axes of partial results, reduction]; `frames` as [file, line, column, end, source line]; `stacks`
    of frames, the innermost first.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {name: [] for name in ("strings", "types", "layouts", "frames", "stacks")}
        self._numbers: dict[tuple[str, Hashable], int] = {}

    def string(self, text: str) -> int:
        """Return the number of a text; -1 for an empty one."""
        return self._number("strings", text, lambda: shortened(text)) if text else -1

    def type(self, type: Type) -> int:
        """Return the number of a type."""
        return self._number("types", type, lambda: [
            shortened(str(type)), [[str(t.dtype), list(t.shape), t.nbytes] for t in element_types(type)]
        ])  # fmt: skip

    def layout(self, layout: Layout | None) -> int:
        """Return the number of a layout; -1 for None."""
        if layout is None:
            return -1
        return self._number("layouts", layout, lambda: [
            list(layout.mesh), [list(axes) for axes in layout.dims], list(layout.partial), layout.reduction
        ])  # fmt: skip

    def layouts(self, layouts: Sequence[Layout | None]) -> list[int]:
        """Return the numbers of several layouts."""
        return [self.layout(layout) for layout in layouts]

    def stack(self, frames: Frames) -> int:
        """Return the number of a call stack; -1 for an empty one."""
        if not frames:
            return -1
        return self._number("stacks", frames, lambda: [self._frame(frame) for frame in frames])

    def _frame(self, frame: Location) -> int:
        return self._number("frames", frame, lambda: [
            self.string(shown_file(frame.file)), frame.line, frame.column, frame.end_column, self.string(frame.text)
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
        """Return all tables by name."""
        return self._rows
