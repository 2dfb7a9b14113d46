"""A scanner of texts: it matches one token of the grammar after the other, and notes which were expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from mspc.ir.text.source_text import Malformed, TextToken

T = TypeVar("T")

QUOTED = r'"(?:[^"\\\n]|\\.)*+"'
"""Pattern of a quoted text."""


class Token(NamedTuple):
    """A token of the grammar. name: in messages; "" for one that they leave out. pattern: with group 1 as its text."""

    name: str
    pattern: re.Pattern[str]


def token(name: str, pattern: str) -> Token:
    """Return the token of a pattern, which may have space before it."""
    return Token(name, re.compile(rf"\s*({pattern})"))


def mark(text: str) -> Token:
    """Return the token of a fixed text, called by it."""
    return token(f"'{text}'", re.escape(text))


_SPACE = re.compile(r"\s*")


class Scanner:
    """A position in a text. expected: the names of the tokens that were tried there."""

    __slots__ = ("at", "expected", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.expected: list[str] = []

    def match(self, token: Token) -> re.Match[str] | None:
        """Move past the token and return its match, or None if the text continues otherwise."""
        found = token.pattern.match(self.text, self.at)
        if found is None:
            self.expected.append(token.name)
            return None
        self.at = found.end()
        self.expected.clear()
        return found

    def take(self, token: Token) -> TextToken | None:
        """Move past the token and return its text with its position, or None if the text continues otherwise."""
        found = self.match(token)
        return None if found is None else TextToken.of(token.name, found[1], found.start(1))

    def need(self, token: Token) -> re.Match[str]:
        """Move past the token. Raise Malformed if the text continues otherwise."""
        found = self.match(token)
        if found is None:
            self.fail()
        return found

    def ends(self) -> bool:
        """Return whether nothing but space follows."""
        self.expected.append("the end")
        return self.start() == len(self.text)

    def start(self) -> int:
        """Return the position of the next character that is no space."""
        found = _SPACE.match(self.text, self.at)
        return self.at if found is None else found.end()

    def fail(self) -> NoReturn:
        """Raise Malformed for the text at the position."""
        at = self.start()
        line = self.text[at : at + 24].partition("\n")[0]
        message = f"unexpected {line!r}" if line else "the text ends too early"
        raise Malformed(message, at, tuple(sorted(set(self.expected) - {""})))


def whole(text: str, read: Callable[[Scanner], T]) -> T:
    """Return what `read` makes of a text. Raise Malformed if more follows."""
    scanner = Scanner(text)
    found = read(scanner)
    if not scanner.ends():
        scanner.fail()
    return found
