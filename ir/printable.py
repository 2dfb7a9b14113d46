"""Text is made safe here for a terminal or a log: names come from files, and may move a cursor or break a line."""

from __future__ import annotations

import re

_SURROGATES = f"{chr(0xD800)}-{chr(0xDFFF)}"
_TURNING = "\u200e\u200f\u202a-\u202e\u2066-\u2069"
CONTROL = f"[\x00-\x1f\x7f-\x9f\u2028\u2029{_TURNING}{_SURROGATES}]"
"""What is not shown as it is, as a class of a regular expression."""
_CONTROL = re.compile(CONTROL)
_BUT_LINES = re.compile(f"(?![\\n\\t]){CONTROL}")


def shown(text: str, lines: bool = False) -> str:
    r"""The text with its control characters as escapes: `\x1b`, `\n`. They end lines, colour and move what stands on a
    terminal, or turn the direction of writing. lines: tabs and ends of lines stay, as the text has several."""
    if text.isprintable():
        return text
    return (_BUT_LINES if lines else _CONTROL).sub(lambda found: ascii(found[0])[1:-1], text)
