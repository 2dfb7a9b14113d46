"""Makes a table fit a width. Nothing is cut off: what is too wide goes below its row, and cells are broken into lines.

A table that fits stands as it is. Else the columns that it names as `below` leave it, the first one first, and stand on
lines of their own under each row, as their headings do under the others. Where that is not enough the widest columns
are narrowed alike and their cells broken, at spaces where there are any, else behind punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mspc.ir.diagnostics import shown
from mspc.ir.late_dataclass import dataclass

GAP = "  "
INDENT = 4
NARROWEST = 40
"""A table is laid out for this width at least."""
LEAST = 8
"""Characters to which a column is narrowed at most."""
_TUPLE = re.compile(r"\([\d, -]*\)")
_MARK = re.compile(r"[-./:,_)\]]")


@dataclass(frozen=True)
class TextTable:
    """Rows of text under headings.

    numbers: indexes of the columns that are set to the right, and are never broken. below: indexes of the columns that
    go below their rows where the width is not enough, the first one first.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numbers: tuple[int, ...] = ()
    below: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """A table as lines of text: its title, its headings, its rows."""

    title: list[str]
    headings: list[str]
    rows: list[str]

    @property
    def lines(self) -> list[str]:
        return [*self.title, *self.headings, *self.rows]


def fit(table: TextTable, width: int) -> Fitted:
    """The table in lines of at most `width` characters, NARROWEST at least; numbers and the title may be wider."""
    width = max(width, NARROWEST)
    table = replace(table, title=shown(table.title, lines=True), rows=[tuple(map(shown, row)) for row in table.rows])
    inside = list(range(len(table.columns)))
    below: list[int] = []
    for index in table.below:
        if _total(_natural(table, inside)) <= width:
            break
        inside.remove(index)
        below.append(index)
    widths = _narrowed(_natural(table, inside), [i in table.numbers for i in inside], width)
    headings, *rows = [
        _row(table, row, inside, widths) + _below(row, below, width) for row in (table.columns, *table.rows)
    ]
    return Fitted([table.title], headings, [line for lines in rows for line in lines])


def broken(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` characters, broken at spaces, else behind punctuation, else anywhere.

    A tuple of numbers stays in one piece where it can. What was broken at no space reads on without one.
    """
    lines: list[str] = []
    while len(text) > width:
        masked = _TUPLE.sub(lambda found: "x" * len(found[0]), text)
        space = max(masked.rfind(" ", 1, width + 1), 0) or max(text.rfind(" ", 1, width + 1), 0)
        if text[:space].strip():
            lines.append(text[:space].rstrip())
            text = text[space:].lstrip()
            continue
        marks = [mark.end() for mark in _MARK.finditer(text[:width])]
        at = marks[-1] if marks else width
        lines.append(text[:at])
        text = text[at:]
    return [*lines, text]


def _natural(table: TextTable, inside: Sequence[int]) -> list[int]:
    return [max(len(cells[i]) for cells in (table.columns, *table.rows)) for i in inside]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrowed(widths: list[int], fixed: Sequence[bool], width: int) -> list[int]:
    """The widths, the widest of those that are not fixed reduced to one common width until all fit."""
    free = [i for i, stays in enumerate(fixed) if not stays]
    most = max((widths[i] for i in free), default=0)
    while most > LEAST and _total([w if fixed[i] else min(w, most) for i, w in enumerate(widths)]) > width:
        most -= 1
    found = [w if fixed[i] else min(w, most) for i, w in enumerate(widths)]
    for i in free:  # what rounding has left goes to the columns that were narrowed
        found[i] += max(0, min(widths[i] - found[i], width - _total(found)))
    return found


def _below(row: Sequence[str], below: Sequence[int], width: int) -> list[str]:
    """The lines under a row; a cell that says nothing has none."""
    cells = [row[index] for index in below if row[index] not in ("", "-")]
    return [" " * INDENT + line for cell in cells for line in broken(cell, width - INDENT)]


def _row(table: TextTable, row: Sequence[str], inside: Sequence[int], widths: Sequence[int]) -> list[str]:
    """The lines of one row; the last column is not padded."""
    cells = [broken(row[i], w) for i, w in zip(inside, widths, strict=True)]
    lines: list[str] = []
    for number in range(max(map(len, cells), default=1)):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        padded = [
            part.rjust(w) if i in table.numbers else part.ljust(w)
            for i, part, w in zip(inside, parts, widths, strict=True)
        ]
        lines.append(GAP.join(padded).rstrip())
    return lines
