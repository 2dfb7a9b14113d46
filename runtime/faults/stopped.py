"""Ranks whose processes do not run: stopped by a signal, held by a debugger, or held up before their first record.

Everything here is read from /proc; elsewhere no rank counts as stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.runtime.faults.record import CALLS, GRAPH, MARK, NODE, PID, STATE, STEP
from mspc.runtime.faults.waiting import OWN_PAUSE

NAMED = 3.0
"""Seconds after which a stopped rank is named."""
_WORDS = (CALLS, GRAPH, MARK, NODE, STATE, STEP)
STOPPED, TRACED = "T", "t"


def state_of(pid: int) -> str:
    """A process's state as the letter that Linux has for it; "" for one that is not there."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


class Stopped:
    """Which ranks are stopped, and since when.

    Args:
        records: of all ranks. siblings: processes of ranks that may not have a record yet, by rank.
    """

    def __init__(self, records: Sequence[Any], siblings: Callable[[], Mapping[int, int]] | None = None) -> None:
        self._records = records
        self._siblings = siblings
        self._seen: dict[int, list[int]] = {}
        self._since: dict[int, float] = {}
        self._named: set[int] = set()
        self._began = self._last = 0.0

    def look(self, now: float) -> dict[int, float]:
        """Seconds for which each rank has been seen stopped. A rank whose record changes is not looked at."""
        if not self._last or now - self._last > OWN_PAUSE:
            self._since.clear()
            self._began = now
        self._last = now
        early = self._siblings() if self._siblings is not None and self._absent(now) else {}
        states = {rank: self._state(rank, record, early) for rank, record in enumerate(self._records)}
        self._since = {
            rank: self._since.get(rank, now) for rank, state in states.items() if state in (STOPPED, TRACED)
        }
        self._named &= self._since.keys()
        return {rank: now - since for rank, since in self._since.items()}

    def to_name(self, seconds: Mapping[int, float]) -> list[int]:
        """The ranks of a look that have been stopped for long enough to be named, each once per stop."""
        found = [rank for rank, for_seconds in seconds.items() if for_seconds >= NAMED and rank not in self._named]
        self._named.update(found)
        return found

    def pid(self, rank: int) -> int:
        """The process of a rank, 0 where it is not known."""
        return self._records[rank][PID] or (self._siblings() if self._siblings is not None else {}).get(rank, 0)

    def _absent(self, now: float) -> bool:
        return now - self._began > 1 and any(not record[PID] for record in self._records)

    def _state(self, rank: int, record: Any, early: Mapping[int, int]) -> str:
        pid = record[PID] or early.get(rank, 0)
        words = [record[word] for word in _WORDS]
        moved = self._seen.get(rank) != words
        self._seen[rank] = words
        return state_of(pid) if pid and not moved else ""
