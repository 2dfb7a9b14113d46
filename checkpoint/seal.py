"""A text of JSON may hold a checksum of itself: the header of a rank's file does, and the index of a set.

It is in the text, `"mspc_checksum":"xxh3:0123456789abcdef"`, and is that of the text with zeros as its digits.
"""

from __future__ import annotations

from typing import Any

from mspc.checkpoint.checksum import can_compare, empty, is_checksum, kind_here, shown, started

SEAL = "mspc_checksum"
"""The key of the checksum."""
_BEFORE = f'"{SEAL}":"'.encode()


def placeholder() -> str:
    """The text that stands for the checksum until the text is sealed."""
    return empty(kind_here())


def sealed(text: bytes) -> bytes:
    """The text, of the same length, with its checksum in the place that was reserved for it."""
    place = _BEFORE + placeholder().encode()
    return text.replace(place, _BEFORE + _sum(text, kind_here()).encode(), 1)


def is_sealed(text: bytes, said: Any, what: str) -> bool:
    """Whether a text is as it was written. said: its entry of the checksum, None where it has none. what: how the
    message names the text.

    Returns:
        False where that cannot be known: there is no checksum, or of a kind that cannot be computed here.

    Raises:
        ValueError: it is not.
    """
    if said is None:
        return False
    if not is_checksum(said):
        raise ValueError(f"the checksum of its {what} is given as {said!r:.80}")
    if not can_compare(said):
        return False
    kind = said.partition(":")[0]
    found = _sum(text.replace(_BEFORE + said.encode(), _BEFORE + empty(kind).encode(), 1), kind)
    if found != said:
        raise ValueError(f"the checksum of its {what} is {found}, and {said} was written")
    return True


def _sum(text: bytes, kind: str) -> str:
    running = started(kind)
    assert running is not None
    running.update(text)
    return shown(kind, running)
