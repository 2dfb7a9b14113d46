"""This module finds ranks whose processes do not run: stopped by a signal, held by a debugger, or held up before their
first record.

Everything here is read from /proc; elsewhere no rank counts as stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.runtime.faults.record import CALLS, GRAPH, MARK, NODE, PID, STATE, STEP
from mspc.runtime.faults.waiting import OWN_PAUSE

NAMED = 3.0
"""Seconds after which a stopped rank is named."""
ASKED_EVERY = 1.0
"""Seconds between two looks for ranks that have no record yet."""
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
        self._early: Mapping[int, int] = {}
        self._asked = self._last = 0.0

    def look(self, now: float) -> dict[int, float]:
        """Seconds for which each rank has been seen stopped. A rank whose record changes is not looked at."""
        if not self._last or now - self._last > OWN_PAUSE:
            self._since.clear()
            self._asked = now
        self._last = now
        self._ask(now)
        states = {rank: self._state(rank, record) for rank, record in enumerate(self._records)}
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
        return self._records[rank][PID] or self._early.get(rank, 0)

    def complete(self) -> None:
        """All ranks have come up: those without a record here are on other hosts, so none of them is looked for."""
        self._siblings = None

    def _ask(self, now: float) -> None:
        """Ask once in a while for the processes of ranks that have no record yet; it means to look at all processes."""
        if self._siblings is None or now - self._asked <= ASKED_EVERY:
            return
        self._asked = now
        self._early = self._siblings() if any(not record[PID] for record in self._records) else {}

    def _state(self, rank: int, record: Any) -> str:
        pid = self.pid(rank)
        words = [record[word] for word in _WORDS]
        moved = self._seen.get(rank) != words
        self._seen[rank] = words
        return state_of(pid) if pid and not moved else ""
