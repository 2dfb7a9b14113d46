"""Errors of users: one message with the source line, notes, and the remedy; and helpers for the texts of messages.

A location is a position in the user's program. Control characters in names from files are never printed.
"""

from __future__ import annotations

import contextlib
import re
import sys
import textwrap
import unicodedata
from collections.abc import Generator, Iterable, Sequence
from functools import cache
from typing import Any

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """One span of a source file.

    `line` counts from 1; `column` and `end_column` count characters from 1, the end exclusive (0: unknown).
    `text` is the source line without its newline character.
    """

    file: str
    line: int
    column: int = 0
    end_column: int = 0
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


Frames = tuple[Location, ...]
"""A call stack, the innermost frame first: the line of the operator, then the line that called it, and so on."""


_SURROGATES = f"{chr(0xD800)}-{chr(0xDFFF)}"
_TURNING = "\u200e\u200f\u202a-\u202e\u2066-\u2069"
CONTROL = f"[\x00-\x1f\x7f-\x9f\u2028\u2029{_TURNING}{_SURROGATES}]"
"""Characters that are shown as escapes, as a class of a regular expression."""
_CONTROL = re.compile(CONTROL)
_BUT_LINES = re.compile(f"(?![\\n\\t]){CONTROL}")


def shown(text: str, lines: bool = False) -> str:
    r"""Return the text with its control characters as escapes: `\x1b`, `\n`. They end lines, colour or move text on a
    terminal, or reverse the direction of writing. lines: leave tabs and newlines, for a text of several lines."""
    if text.isprintable():
        return text
    return (_BUT_LINES if lines else _CONTROL).sub(lambda found: ascii(found[0])[1:-1], text)


def listed(things: Sequence[object], most: int = 16) -> str:
    """Return things for a message, only the first of many: `a, b and 3 more`."""
    more = len(things) - most
    return ", ".join(map(str, things[:most])) + f" and {more} more" * (more > 0)


def ranks_listed(ranks: Sequence[int], most: int = 16) -> str:
    """Return ranks for a message: `rank 3` or `ranks 0, 2 and 5 more`."""
    return f"rank{'s' * (len(ranks) != 1)} {listed(ranks, most)}"


def shown_ranks(ranks: Sequence[int]) -> str:
    """Return ascending ranks as `rank 3` or `ranks 0-3, 8-11`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return f"rank{'s' * (len(ranks) > 1)} {listed(['-'.join(map(str, part)) for part in parts])}"


PRINTED_BITS = 256
"""Longest integer that messages spell out."""


def value_repr(value: object) -> str:
    """Return `repr(value)`, or a description if the value is or holds a huge integer, or nests too deep for `repr`."""
    if isinstance(value, int):
        is_huge = value.bit_length() > PRINTED_BITS
        return f"an integer of more than {PRINTED_BITS} bits" if is_huge else repr(value)
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} with an integer of more than {PRINTED_BITS} bits"
    except RecursionError:
        return f"a {type(value).__name__} nested too deep to print"


def shown_bytes(count: int) -> str:
    """Return for example "3.2 GiB (3,435,973,836 bytes)"; below 1 KiB only the bytes."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit} ({count:,} bytes)"
    return f"{count:,} bytes"


def is_about_digits(error: Exception) -> bool:
    """Return True if Python refused to convert an integer to text or back because it has too many digits."""
    return isinstance(error, ValueError) and "integer string conversion" in str(error)


def cell_name(file: str) -> str:
    """Return `In[3]` for the file name of a cell of IPython, "" for other files. Nothing is imported to find out."""
    library = sys.modules.get("IPython")
    shell = library.get_ipython() if library is not None and hasattr(library, "get_ipython") else None
    described = shell.compile.format_code_name(file) if shell is not None else None
    return str(described[1]) if described else ""


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    from html import escape  # only notebooks need it

    def row_of(kind: str, values: Iterable[Any]) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(str(value))}</{kind}>" for value in values) + "</tr>"

    top = f"<thead>{row_of('th', headings)}</thead>" if headings else ""
    body = "".join(row_of("td", row) for row in rows)
    return f"<table><caption>{escape(title)}</caption>{top}<tbody>{body}</tbody></table>"


LONGEST_LINE = 1000
"""Cells of a source line that are shown if the width of the terminal is unknown."""
INDENT = "    "
MIN_LINE_CELLS = 30
"""Fewest cells of a source line that are shown."""
NARROWEST = 40
"""Fewest cells of a terminal for which texts are broken."""
ELLIPSIS = "..."
"""Mark for the omitted parts of a source line."""


def broken_text(text: str, width: int | None) -> list[str]:
    """Return lines of at most `width` characters, broken at spaces only; lines after the first are indented. None for
    `width` breaks no line."""
    text = shown(text, lines=True)
    if width is None or len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    return [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(
            part, max(width, NARROWEST), subsequent_indent=f"{indent}    ", break_long_words=False,
            break_on_hyphens=False, replace_whitespace=False, expand_tabs=False,
        ) or [""]
    ]  # fmt: skip


def excerpt(text: str, column: int, end: int, width: int | None = None) -> list[str]:
    """Return a source line, or the part of a long one around the column, and carets below it.

    column, end: of the first character and after the last one, counted from 1; 0 if unknown. width: cells of a line.
    Carets fit characters that are two cells wide, too.
    """
    room = LONGEST_LINE if width is None else max(MIN_LINE_CELLS, width - len(INDENT) - 1)
    begin = max(0, min(column - 1, len(text)))
    stop = max(begin + 1, min(end - 1, len(text))) if column else begin
    if _cells(text) > room and column:
        text, begin, stop = _around(text, begin, stop, room)
    elif _cells(text) > room:
        text = text.lstrip()[: room - len(ELLIPSIS)] + ELLIPSIS
    lines = [f"{INDENT}{shown(text, lines=True)}"]
    if column:
        pad = "".join("\t" if c == "\t" else " " * _cells(c) for c in text[:begin])
        lines.append(f"{INDENT}{pad}{'^' * max(1, _cells(text[begin:stop]))}")
    return lines


def _around(text: str, begin: int, stop: int, room: int) -> tuple[str, int, int]:
    """Return (text, begin, stop): the part of a line that fits `room` cells, with ELLIPSIS for omitted text, and the
    positions of begin and stop in it. It has the text from begin towards stop, then as much on both sides as fits."""
    left = right = begin
    free = room - 2 * len(ELLIPSIS)
    while right < min(stop, len(text)) and _cells(text[right]) <= free:
        free -= _cells(text[right])
        right += 1
    grown = True
    while grown:
        grown = False
        if left > 0 and _cells(text[left - 1]) <= free:
            left, grown = left - 1, True
            free -= _cells(text[left])
        if right < len(text) and _cells(text[right]) <= free:
            free -= _cells(text[right])
            right, grown = right + 1, True
    before = ELLIPSIS if text[:left].strip() else ""
    after = ELLIPSIS if text[right:].strip() else ""
    shift = len(before) - left
    return f"{before}{text[left:right]}{after}", begin + shift, min(stop, right) + shift


def _cells(text: str) -> int:
    """Return the cells that a text takes on a terminal: two for wide characters, none for combining characters; control
    characters are shown as escapes."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else len(shown(c, lines=True))
        for c in text
    )


MAX_GUESSES = 3
"""Most names that are guessed."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names most similar to `name`, nearest first; only those that differ in case alone, if any."""
    import difflib

    names = sorted(known)
    folded: dict[str, list[str]] = {}
    for each in names:
        folded.setdefault(each.casefold(), []).append(each)
    if name.casefold() in folded:
        return folded[name.casefold()]
    close = difflib.get_close_matches(name.casefold(), folded, MAX_GUESSES)
    close += [each for each in folded if each not in close and len(name) > 2 and name.casefold() in each]
    return [each for fold in close for each in folded[fold]][:MAX_GUESSES]


def did_you_mean(name: str, known: Iterable[str]) -> list[str]:
    """Return a note for an error about an unknown name, or an empty list if no known name is similar."""
    found = [repr(each) for each in nearest(name, known)]
    if not found:
        return []
    return [f"did you mean {' or '.join(filter(None, (', '.join(found[:-1]), found[-1])))}?"]


def all_of(name: str, known: Iterable[str]) -> str:
    """Return all known names in one line, the nearest first, the others in order."""
    first = nearest(name, known)
    return ", ".join([*first, *sorted(set(known) - set(first))])


PIPE_CLOSED = 141
"""Exit status if the reader of stdout is gone, as shells report it for a process that SIGPIPE ended."""
OWN_FILES = "mspc/"
"""Prefix of the names of mspc's own files in call stacks."""


KINDS: tuple[type[Exception], ...] = (
    TypeError, ValueError, IndexError, KeyError, AttributeError, NameError, AssertionError, ZeroDivisionError,
    NotImplementedError, RuntimeError,
)  # fmt: skip
"""Built-in exceptions that an MspcError may also be. The rule: TypeError for an argument of the wrong type
(Python's or an element type) and for too many or too few arguments; ValueError for a wrong value or shape; the
others if Python raises them; RuntimeError for everything else in a compiled function, including strategies and
unsupported features."""


class MspcError(Exception):
    """A mistake in the user's program, command or file.

    Args:
        message: the mistake: operator, instance name, input, dimension, value.
        location: the user's source span, if there is one.
        notes: remedies and further places; one line each.
        frames: the call stack, innermost first; `location` defaults to its first entry in a user's file.
        kind: the built-in exception that this one is as well, one of KINDS.
        code: the kind of mistake in `ir/error_codes.toml`; without it, the code of the module that made the error.

    python: the exception of Python that revealed the mistake, if any.
    """

    exit_status = 2
    made_in = ""
    """The module that made the error."""
    class_code = ""
    """The code of the errors of a class that are made without one."""
    python: Exception | None = None

    def __new__(cls, *_: Any, kind: type[Exception] | None = None, **__: Any) -> MspcError:
        made: Any = cls if kind is None or issubclass(cls, kind) else _member(cls, kind)
        error = super(MspcError, made).__new__(made)  # of its kind's class: an OSError has its own `__new__`
        frame = sys._getframe(1)
        while frame.f_code.co_name in _MAKERS and frame.f_back is not None:
            frame = frame.f_back
        error.made_in = frame.f_globals.get("__name__", "")
        return error

    def __init__(  # type: ignore[reportInconsistentConstructor]  # __new__ looks at the kind only
        self,
        message: str,
        location: Location | None = None,
        notes: Iterable[str] = (),
        frames: Frames = (),
        kind: type[Exception] | None = None,
        code: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.given_code = code
        user = next((f for f in frames if not f.file.startswith(OWN_FILES)), frames[0] if frames else None)
        self.location = location or user
        self.notes = tuple(notes)
        self.frames = frames

    @property
    def kind(self) -> type[Exception] | None:
        """The built-in exception that this error is as well, if any."""
        return kind_of(self)

    @property
    def code(self) -> str:
        """The code of this kind of mistake, as in `mspc explain E0401`. An error that replaces another one, raised
        while that is handled, has its code."""
        from mspc.ir.error_codes import area_code  # few programs fail

        error: BaseException | None = self
        while error is not None:
            if code := getattr(error, "given_code", ""):
                return code
            error = error.__context__
        code = area_code(self.made_in)
        return code if not code.endswith("00") or not self.class_code else self.class_code

    @property
    def codes(self) -> list[str]:
        """The codes of this error, or of all errors of a group."""
        return [self.code]

    def __str__(self) -> str:
        return self.render()

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback, which would only have mspc's own frames."""
        return [f"{type(self).__name__}: {self.report()}"]

    def report(self, width: int | None = None) -> str:
        """Return the complete text, and a line with the command that explains this kind of mistake."""
        return f"{self.render(width)}\nexplain: mspc explain {' '.join(self.codes)}"

    def render(self, width: int | None = None) -> str:
        """Return the complete text: `file:line:col: error: message`, the source line, carets, notes.

        width: cells of a terminal's line. Texts are broken at spaces, and a long source line is cut around its
        carets; None breaks no line.
        """
        where = self.location
        lines = broken_text(f"{where}: error: {self.message}" if where else f"error: {self.message}", width)
        if where and where.text.strip():
            lines += excerpt(where.text, where.column, where.end_column, width)
        place = self.frames.index(where) if where in self.frames else 0
        further = [f"  in {frame}: {frame.text.strip()}" for frame in reversed(self.frames[:place])]
        further += [f"  called from {frame}: {frame.text.strip()}" for frame in self.frames[place + 1 :]]
        further += [f"  note: {note}" for note in self.notes]
        lines += [line for text in further for line in broken_text(text, width)]
        return "\n".join(lines)


_MAKERS = frozenset(("error", "fail", "reading", "__exit__"))
"""Names of functions that make an error for their caller; a context manager does so in `__exit__`."""


@cache
def _member(cls: type[MspcError], kind: type[Exception]) -> type[MspcError]:
    name = cls.__name__.removesuffix("Error") + kind.__name__
    return type(name, (cls, kind), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def kind_of(error: BaseException | type[BaseException]) -> type[Exception] | None:
    """Return the first of KINDS that an exception or its class is, or None, so that a replacement has the same kind."""
    own = error if isinstance(error, type) else type(error)
    return next((kind for kind in KINDS if issubclass(own, kind)), None)


MAX_SHOWN = 20
"""Most errors that one message spells out."""


class ErrorGroup(MspcError):
    """Several independent mistakes of one compile, reported together; the kind is that of the first."""

    def __init__(  # type: ignore[reportInconsistentConstructor]  # __new__ looks at the kind only
        self, errors: Iterable[MspcError], kind: type[Exception] | None = None
    ) -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(self.errors)} errors")

    @property
    def codes(self) -> list[str]:
        return list(dict.fromkeys(code for error in self.errors[:MAX_SHOWN] for code in error.codes))

    def render(self, width: int | None = None) -> str:
        if len(self.errors) == 1:
            return self.errors[0].render(width)
        shown = [error.render(width) for error in self.errors[:MAX_SHOWN]]
        hidden = len(self.errors) - len(shown)
        last = f"{len(self.errors)} errors" + (f", the last {hidden} not shown" if hidden else "")
        return "\n".join([*shown, last])


class ExecutionError(MspcError, RuntimeError):
    """A failure of a correct program while it runs: a kernel, a lost rank, a NaN in the loss."""

    exit_status = 1


@contextlib.contextmanager
def told_at(place: Location | None) -> Generator[None]:
    """Report errors from inside the block at `place`, the call that caused them, if they have no place of their own."""
    try:
        yield
    except MspcError as error:
        error.location = error.location or place
        raise


def raise_all(errors: list[MspcError]) -> None:
    """Raise nothing, the one error, or an ErrorGroup of all; groups are flattened and equal errors joined."""
    every = [one for error in errors for one in (error.errors if isinstance(error, ErrorGroup) else (error,))]
    unique: dict[str, MspcError] = {error.render(): error for error in every}
    if len(unique) == 1:
        raise next(iter(unique.values()))
    if unique:
        raise ErrorGroup(unique.values(), kind=kind_of(next(iter(unique.values()))))
