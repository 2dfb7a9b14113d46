"""This module prints tables: as wide as the terminal, with bold headings there; as JSON on request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mspc.commands.report.fitting import TextTable, broken, fit
from mspc.commands.report.streams import columns_setting, is_terminal, terminal_columns
from mspc.ir.diagnostics import shown
from mspc.ir.files.atomic_writing import check_writable, write_atomically

OTHERWISE = 100
"""Characters of a line where there is no terminal and COLUMNS does not say, so that pipes get the same text always."""
REPORT_VERSION = 1
"""Version of the form of reports. It grows if a field goes or changes its meaning, not if one is added."""
BOLD, PLAIN = "\033[1m", "\033[0m"


def print_table(table: TextTable) -> None:
    """Print to stdout, in lines as wide as the terminal, COLUMNS or `OTHERWISE`."""
    fitted = fit(table, line_width())
    if not _colours():
        print("\n".join(fitted.lines))
        return
    bold = [f"{BOLD}{line}{PLAIN}" for line in (*fitted.title, *fitted.headings)]
    print("\n".join([*bold, *fitted.rows]))


def print_line(text: str) -> None:
    """Print a line to stdout; a terminal gets it broken at spaces, all else as it is."""
    text = shown(text)
    print("\n".join(broken(text, line_width())) if is_terminal(sys.stdout) else text)


def line_width() -> int:
    """Characters of a line of stdout."""
    return terminal_columns(sys.stdout) or columns_setting() or OTHERWISE


def _colours() -> bool:
    """Whether escape codes may be printed: a terminal that knows them, and nobody has turned them off."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def check_json(path: Path | None) -> None:
    """Find out before the work whether `write_json` can write there. Raises MspcError where it cannot."""
    if path is not None and path != Path("-"):
        check_writable(path, "--json")


def write_report(path: Path, command: str, content: Mapping[str, Any], status: int = 0) -> None:
    """Write the report of a command as JSON: an object with the version of the form, the command and its exit status,
    and then the command's own fields.

    Raises:
        MspcError: the file cannot be written.
    """
    write_json({"version": REPORT_VERSION, "command": command, "status": status, **content}, path)


def write_json(content: Any, path: Path) -> None:
    """Write `content` as JSON; `-` is stdout. The reports of commands are written by `write_report`.

    Raises:
        MspcError: the file cannot be written.
    """
    text = json.dumps(content, indent=1) + "\n"
    if path == Path("-"):
        sys.stdout.write(text)
        return
    write_atomically(path, lambda file: file.write(text.encode()))
