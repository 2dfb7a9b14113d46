"""This module holds the text of a file that is read: an error at a character becomes an MspcError with its line."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NoReturn

from mspc.ir.diagnostics import MspcError
from mspc.ir.location import Location
from mspc.ir.text.malformed import Malformed


class SourceText:
    """A file's text and how messages name the file."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.line_starts: list[int] = []

    def fail(self, message: str, at: int, notes: tuple[str, ...] = ()) -> NoReturn:
        """Raise an MspcError at a character of the text; past its end, at the end of the last line."""
        if not self.line_starts:
            self.line_starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        at = max(0, min(at, len(self.text.rstrip())))
        line = bisect_right(self.line_starts, at)
        start = self.line_starts[line - 1]
        source = self.text[start:].split("\n", 1)[0]
        column = at - start + 1
        raise MspcError(message, Location(self.file, line, column, column + 1, source), notes)

    def piece(self, read: Callable[[str], Any], text: str, at: int) -> Any:
        """Read a small text that begins at a character of the file."""
        try:
            return read(text)
        except Malformed as error:
            self.fail(error.message, at + error.offset, expectation(error.expected))


def expectation(names: tuple[str, ...]) -> tuple[str, ...]:
    """A note that says what the grammar allows; none when it is not known."""
    if not names:
        return ()
    return ("expected " + (names[0] if len(names) == 1 else "one of " + ", ".join(names)),)
