"""Long tables end at a number of rows and say what is missing; what is alike in repeated layers has one name."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from mspc.commands.report.fitting import TextTable, fit
from mspc.commands.report.table import line_width, print_line, print_table

ALL = "--all"
"""The option that shows what was left out."""
ELLIPSIS = "..."
SCREEN = 40
"""Lines of tables that are printed with every row."""
Entry = TypeVar("Entry")
Kind = TypeVar("Kind", bound=Hashable)
_NUMBER = re.compile(r"(?<![^./])(?:\d+|\[\d+\.\.\d+\])(?=[./-]|$)")


def fits_screen(tables: Sequence[TextTable]) -> bool:
    """Whether tables, an empty line behind each, need no summary."""
    return sum(len(fit(table, line_width()).lines) + 1 for table in tables) <= SCREEN


def print_shortened(table: TextTable, most: int, option: str = ALL) -> None:
    """Print the first rows of a table, then how many more there are and which option shows them.

    A row has one line, and one for every cell that goes below it: longer cells end in ELLIPSIS.
    """
    rows = table.rows[:most]
    print_table(replace(table, rows=[tuple(clipped(cell, line_width() - 4) for cell in row) for row in rows]))
    if more := len(table.rows) - len(rows):
        print_line(f"{ELLIPSIS} and {more} more; {option} shows {'it' if more == 1 else 'them'}")


def clipped(text: str, width: int) -> str:
    """`text` in at most `width` characters."""
    return text if len(text) <= width else text[: max(0, width - len(ELLIPSIS))].rstrip() + ELLIPSIS


def layer_kind(name: str) -> str:
    """Return the name with `*` for the numbers of layers: `layers-CellList/*-Layer`, `layers.*.norm.gamma`.

    In a sentence the names of cells and parameters are changed, and not its numbers: `the gradient of *.a.weight`.
    """
    words = name.split(" ")
    if len(words) == 1:
        return _NUMBER.sub("*", name)
    return " ".join(_NUMBER.sub("*", word) if any(map(str.isalpha, word)) else word for word in words)


def alike(entries: Iterable[Entry], kind: Callable[[Entry], Kind]) -> dict[Kind, list[Entry]]:
    """The entries of every kind, kinds in the order in which they come first."""
    found: dict[Kind, list[Entry]] = {}
    for entry in entries:
        found.setdefault(kind(entry), []).append(entry)
    return found
