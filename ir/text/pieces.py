"""A piece is a stretch of a file's text that knows where it begins, as the tokens of the grammar do."""

from __future__ import annotations


class TextToken(str):
    """The text. type: the name of the grammar's terminal. start_pos: its first character's place in the file."""

    __slots__ = ("start_pos", "type")

    start_pos: int
    type: str

    @staticmethod
    def of(type: str, text: str, start_pos: int) -> TextToken:
        made = TextToken(text)
        made.type, made.start_pos = type, start_pos
        return made
