"""What a planted error is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """An error: `old` stands once in `file` of the package, `new` instead of it."""

    name: str
    file: str
    old: str
    new: str
