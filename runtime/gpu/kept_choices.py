"""Choices between ways to compute the same, kept on disk for the next start on the same kind of machine.

A file's name is made of the machine and of the libraries' versions. It is JSON: numbers of choices, and lists of pairs
of numbers, by digests of what they are for. What is damaged counts as empty, and what cannot be written is not kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cache_folder, make_cache_folder, read_own, write_private

Key = tuple[Any, ...]
Pairs = tuple[tuple[int, int], ...]
MOST = 20_000
"""Entries of a file; of more the oldest go."""


class KeptChoices:
    """What one file holds; path: None where nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known = _read(path)
        self._new: dict[str, Any] = {}

    def get(self, key: Key, count: int) -> int | None:
        """The choice among `count` that an earlier start has made."""
        found = self._known.get(_digest(key))
        return found if isinstance(found, int) and 0 <= found < count else None

    def put(self, key: Key, choice: int) -> None:
        self._new[_digest(key)] = choice

    def pairs(self, key: Key) -> Pairs | None:
        """Pairs of numbers, of 0 or more, that an earlier start has put under this key."""
        found = self._known.get(_digest(key))
        return tuple((first, second) for first, second in found) if _are_pairs(found) else None

    def put_pairs(self, key: Key, pairs: Pairs) -> None:
        self._new[_digest(key)] = [list(pair) for pair in pairs]

    def save(self) -> None:
        """Write what is new beside what others have written since."""
        if self.path is None or not self._new:
            return
        whole = {**_read(self.path), **self._new}
        self._known, self._new = whole, {}
        kept = dict(list(whole.items())[-MOST:])
        text = json.dumps(kept, separators=(",", ":")).encode()
        try:
            make_cache_folder(self.path.parent)
            write_private(self.path, text)
        except (OSError, MspcError):  # a folder that is full or read-only
            return


def file_of(machine: Sequence[str]) -> Path | None:
    """Where choices on a machine are kept, which these words tell from others."""
    folder = cache_folder("choices")
    return None if folder is None else folder / f"{_digest(tuple(machine))}.json"


def _digest(key: Key) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = json.loads(read_own(path) or b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _are_pairs(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) and n >= 0 for n in pair) for pair in found
    )
