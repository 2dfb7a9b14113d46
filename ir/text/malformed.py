"""This module has the error of a malformed piece of text, and reads the names and strings that such pieces hold."""

from __future__ import annotations

import json


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
