"""Prints tables: with rich on a terminal, as plain aligned text elsewhere, as JSON on request."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError


@dataclass(frozen=True)
class Table:
    """Rows of text under headings. numbers: indexes of the columns that are set to the right."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numbers: tuple[int, ...] = ()


def print_table(table: Table) -> None:
    """Print to stdout."""
    if sys.stdout.isatty():
        _print_rich(table)
    else:
        print("\n".join(plain_lines(table)))


def plain_lines(table: Table) -> list[str]:
    """The table as aligned text; the last column is not padded."""
    widths = [max(map(len, cells)) for cells in zip(table.columns, *table.rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if i in table.numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return [table.title, line(table.columns), *map(line, table.rows)]


def _print_rich(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if index in table.numbers else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console(width=shutil.get_terminal_size().columns).print(shown)


def write_json(content: Any, path: Path) -> None:
    """Write `content` as JSON; `-` is stdout.

    Raises:
        MspcError: the file cannot be written.
    """
    text = json.dumps(content, indent=1) + "\n"
    if path == Path("-"):
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MspcError(f"cannot write {path}: {error.strerror}") from None
