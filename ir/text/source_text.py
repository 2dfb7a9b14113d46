"""This module holds the text of a file that is read, and reads names and strings in it: an error at a character, or in
a piece of it, becomes an MspcError with its line."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NoReturn

from mspc.ir.diagnostics import MspcError
from mspc.ir.location import Location
from mspc.ir.types import DTYPES, DType


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


class Malformed(Exception):
    """A malformed piece of text: the message, and how many characters behind the start of the piece the error is."""

    def __init__(self, message: str, offset: int = 0, expected: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.expected = expected


def string_of(text: str) -> str:
    """The string of a quoted text. MindSpore does not escape; such a text is taken as it stands."""
    try:
        return json.loads(text)
    except ValueError:
        return text[1:-1]


def name_of(text: str) -> str:
    """The name that a bare word or a quoted text stands for."""
    return string_of(text) if text.startswith('"') else text


def dtype_called(name: str) -> DType:
    """The element type of this name. Raises Malformed."""
    if name not in DTYPES:
        raise Malformed(f"unknown element type {name}; known are {', '.join(DTYPES)}")
    return DTYPES[name]
