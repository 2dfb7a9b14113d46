"""Pieces of a file's text that carry their position, as the tokens of the grammar do."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

from mspc.ir.diagnostics import Frames, Location, MspcError
from mspc.ir.types import DTYPES, DType


class TextToken(str):
    """A piece of text. type: the name of the grammar's terminal. start_pos: its first character in the file."""

    __slots__ = ("start_pos", "type")

    start_pos: int
    type: str

    @staticmethod
    def of(type: str, text: str, start_pos: int) -> TextToken:
        made = TextToken(text)
        made.type, made.start_pos = type, start_pos
        return made


class SourceText:
    """A file's text, and the file's name in messages."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.line_starts: list[int] = []

    def fail(self, message: str, at: int, notes: tuple[str, ...] = (), code: str = "") -> NoReturn:
        """Raise an MspcError at character `at` of the text; past its end, at the end of the last line."""
        if not self.line_starts:
            self.line_starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        at = max(0, min(at, len(self.text.rstrip())))
        line = bisect_right(self.line_starts, at)
        start = self.line_starts[line - 1]
        source = self.text[start:].split("\n", 1)[0]
        column = at - start + 1
        raise MspcError(message, Location(self.file, line, column, column + 1, source), notes, code=code)

    def piece(self, read: Callable[[str], Any], text: str, at: int) -> Any:
        """Return `read(text)` for a text that begins at character `at` of the file. Raise MspcError if malformed."""
        try:
            return read(text)
        except Malformed as error:
            self.fail(error.message, at + error.offset, expectation(error.expected))


def expectation(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note with the tokens that the grammar allows; () if they are not known."""
    if not names:
        return ()
    return ("expected " + (names[0] if len(names) == 1 else "one of " + ", ".join(names)),)


class Malformed(Exception):
    """Error: a piece of text is malformed. offset: characters from the start of the piece to the error."""

    def __init__(self, message: str, offset: int = 0, expected: tuple[str, ...] = (), code: str = "") -> None:
        super().__init__(message)
        self.given_code = code
        self.message = message
        self.offset = offset
        self.expected = expected


def string_of(text: str) -> str:
    """Return the string in a quoted text. MindSpore does not escape; such a text is taken literally."""
    try:
        return json.loads(text)
    except ValueError:
        return text[1:-1]


def name_of(text: str) -> str:
    """Return the name in a bare word or a quoted text."""
    return string_of(text) if text.startswith('"') else text


def dtype_called(name: str) -> DType:
    """Return the element type of this name. Raise Malformed if there is none."""
    if name not in DTYPES:
        raise Malformed(f"unknown element type {name}; known are {', '.join(DTYPES)}", code="E0906")
    return DTYPES[name]


_OWN_FRAME = re.compile(r"# In file (.*?)\((\d{1,15})\)/(.*)/(?: (\d{1,15})~(\d{1,15}))?\Z")
_FOREIGN_FRAME = re.compile(r"# In file (.*?):(\d{1,15})(?:~\d{1,15})?, (\d{1,15})~(\d{1,15})/(.*)/\Z")
_SCOPE = re.compile(r"# (?:scope|Scope|Fullname with scope): \((.*)\)\Z")
_FACT = re.compile(r"#\s*(IR entry|IR dialect|Total subgraphs?|Total params)\s*:\s*@?(.*)\Z")
_PARAMETERS = re.compile(r"# Parameters: \d+, \((.*)\)\Z")
_SHARED = "<~~This line of code can be shared by multiple nodes, and may be duplicated."
_OTHER_NODES = ("# Corresponding forward node candidate:", "# Corresponding code candidate:")


@lru_cache(maxsize=16384)
def read_trailer(text: str, with_frames: bool) -> tuple[str, Frames]:
    """Return (scope, frames) from the comment lines below a node; other comments are ignored.

    mspc writes the innermost frame first. MindSpore's newer form (`file:line, columns/ source/`) has it last.
    """
    scope = ""
    own: list[Location] = []
    foreign: list[Location] = []
    for raw in text.split("\n"):
        line = raw.lstrip().rstrip("\r")
        if line.startswith("# In file "):
            if not with_frames:
                continue
            if match := _OWN_FRAME.match(line):
                file, number, source, column, end = match.groups()
                own.append(Location(file, int(number), int(column or 0), int(end or 0), source))
            elif match := _FOREIGN_FRAME.match(line.replace(_SHARED, "")):
                file, number, column, end, source = match.groups()
                foreign.append(Location(file, int(number), int(column) + 1, int(end) + 1, source.rstrip("/")))
        elif line.startswith(_OTHER_NODES):
            break
        elif not scope and (match := _SCOPE.match(line.rstrip())):
            scope = name_of(match.group(1))
    return scope, (*own, *reversed(foreign))


def header_facts(text: str) -> dict[str, str]:
    """Return the facts `IR entry`, `IR dialect`, `Total subgraph`, `Total params` of comment lines, as texts."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if match := _FACT.match(line.strip()):
            found[match.group(1).removesuffix("s") if "subgraph" in line else match.group(1)] = match.group(2)
    return found


def parameter_types(text: str) -> list[str] | None:
    """Return the texts of the types in a comment `# Parameters: 2, (<..>, <..>)`, or None if there is none."""
    for line in text.split("\n"):
        if match := _PARAMETERS.match(line.strip()):
            return re.findall(r"<[^<>]*>", match.group(1))
    return None
