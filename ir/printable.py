"""Text of names and values that is safe to print: names from files may hold control characters, and Python refuses to
print integers of thousands of digits."""

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


PRINTED_BITS = 256
"""Longest integer that messages spell out."""


def value_repr(value: object) -> str:
    """Return `repr(value)`, or a description if it is or holds a huge integer, or is nested too deep for `repr`."""
    if isinstance(value, int):
        is_huge = value.bit_length() > PRINTED_BITS
        return f"an integer of more than {PRINTED_BITS} bits" if is_huge else repr(value)
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} with an integer of more than {PRINTED_BITS} bits"
    except RecursionError:
        return f"a {type(value).__name__} nested too deep to print"


def is_about_digits(error: Exception) -> bool:
    """Return True if Python refused to convert an integer to text or back because it has too many digits."""
    return isinstance(error, ValueError) and "integer string conversion" in str(error)
