"""Limits on the contents of a text. Larger values are typing errors or damage, and would fill the memory."""

from __future__ import annotations

LARGEST_SIZE = 1 << 60
"""The largest size: arrays count their elements in 63 bits."""
MAX_DIMENSIONS = 1 << 10
"""The largest rank of a tensor, far above any network's: longer tuples of sizes, axes or slices are mistakes."""
LARGEST_CONSTANT = 1 << 26
"""Most elements of a constant."""
LONGEST_LIST = 1 << 20
"""Most members of a list start:stop:step, and most types of a node's operands."""
MAX_LISTED = 1 << 24
"""Most members of all different lists start:stop:step of a file: a few bytes of text expand to megabytes."""
DEEPEST = 32
"""Deepest nesting of brackets in a value."""
DEEPEST_REGIONS = 100
"""Deepest nesting of graphs."""
DEEPEST_TUPLE = 200
"""Deepest nesting of tuples among the arguments or results of a network."""
MAX_RANKS = 1 << 20
"""Most ranks of a graph: a group of ranks is a list."""


def number_of(text: str, most: int) -> int | None:
    """Return the number in decimal digits; None for other text or a number above `most`.

    Unlike `int`, which takes quadratic time and refuses thousands of digits, it reads only as many digits as it needs.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(most)) or int(digits) > most:
        return None
    return int(digits)
