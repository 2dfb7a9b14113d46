"""This module lays out the lines of an error for a terminal: texts broken at spaces, and a source line with carets
below it.
"""

from __future__ import annotations

import textwrap
import unicodedata

from mspc.ir.printable import shown

LONGEST_LINE = 1000
"""Cells of a source line that are shown where no terminal says how wide it is."""
INDENT = "    "
LEAST = 30
"""Cells of a source line that are shown at least."""
NARROWEST = 40
"""Texts are broken for a terminal of so many cells at least."""
ELLIPSIS = "..."
"""The indentation of a line that continues another."""


def broken_text(text: str, width: int | None) -> list[str]:
    """Lines of at most `width` characters, broken at spaces, those behind the first indented; no word is broken."""
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
    """A source line, of a long one what stands around the column, and carets below it.

    column, end: of the first character and behind the last one, counted from 1; 0 where nothing is known. width: cells
    of a line; carets stand below characters of two cells, too.
    """
    room = LONGEST_LINE if width is None else max(LEAST, width - len(INDENT) - 1)
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
    """What of a line fits `room` cells, with ELLIPSIS for more, and where begin and stop are in it: the text between
    them from its beginning, then as much on either side as there is room for."""
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
    """How many cells a terminal takes for a text: two for wide characters, none for what combines with the one before;
    control characters are shown as escapes."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(_cells_of(c) for c in text)


def _cells_of(c: str) -> int:
    if unicodedata.combining(c):
        return 0
    if unicodedata.east_asian_width(c) in "WF":
        return 2
    return len(shown(c, lines=True))
