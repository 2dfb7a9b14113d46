"""Checksums of stored slices are XXH3 with 64 bits where the library xxhash is installed, else CRC-32 of zlib.

A checksum is text, the name of its kind before its digits, so that a file says by what it can be checked.
"""

from __future__ import annotations

import importlib
import zlib
from functools import cache
from typing import Any, Protocol

AT_ONCE = 1 << 19
"""Bytes that are read or written and added to a checksum together, while they are in the processor's cache."""


class Running(Protocol):
    """A checksum of the bytes so far."""

    def update(self, data: Any) -> object: ...

    def hexdigest(self) -> str: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


DIGITS = {"xxh3": 16, "crc32": 8}
"""Hexadecimal digits of every kind."""


@cache
def _fast() -> Any:
    try:
        return importlib.import_module("xxhash").xxh3_64
    except ImportError:
        return None


def kind_here() -> str:
    """The kind that new checksums have."""
    return "crc32" if _fast() is None else "xxh3"


def empty(kind: str) -> str:
    """A text as long as a checksum of this kind: it reserves the place until the checksum is known."""
    return f"{kind}:{'0' * DIGITS[kind]}"


def started(kind: str) -> Running | None:
    """A checksum of nothing yet; None where this kind cannot be computed here."""
    if kind == "crc32":
        return _Crc32()
    made = _fast()
    return None if made is None else made()


def can_compare(text: str) -> bool:
    """Whether a checksum can be computed here, to compare it; False for none."""
    return bool(text) and started(text.partition(":")[0]) is not None


def shown(kind: str, running: Running) -> str:
    """A checksum as text."""
    return f"{kind}:{running.hexdigest()}"


def is_checksum(text: Any) -> bool:
    """Whether `text` is a checksum of a known kind."""
    kind, _, digits = text.partition(":") if isinstance(text, str) else ("", "", "")
    return kind in DIGITS and len(digits) == DIGITS[kind] and all(c in "0123456789abcdef" for c in digits)
