"""This module finds ranks that others wait for and that do nothing: asleep, blocked on something outside of the job, or
dead-locked.

A rank works while its process or one below it uses a core or moves data, however long it computes; else it is idle.
Everything here is read from /proc; elsewhere no rank counts as idle.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.runtime.faults.record import CALLS, GRAPH, MARK, NODE, PID, RUNNING, STATE, STEP, WAITS
from mspc.runtime.faults.stopped import state_of
from mspc.runtime.faults.waiting import OWN_PAUSE, blockers

NAMED = 6.0
"""Seconds after which an idle rank is named."""
EVERY = 1.0
"""Seconds between two looks at what processes do."""
BUSY = 0.03
"""Seconds of a core between two such looks that are work; the thread that watches takes less."""
WORKING = ("R", "D")
"""States of a process that wants a core, which others may hold, or waits for a disk."""
_WORDS = (CALLS, GRAPH, MARK, NODE, STATE, STEP)


@dataclass(frozen=True)
class Wait:
    """`rank` waits for `idle`, which has done nothing for `seconds`."""

    rank: int
    idle: int
    seconds: float


@dataclass
class _Seen:
    words: list[int]
    core: float
    moved: int
    since: float


class Idle:
    """Looks for ranks that are waited for and idle. records: of all ranks."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self._seen: dict[int, _Seen] = {}
        self._named: set[int] = set()
        self._last = self._looked = 0.0
        self._found: list[Wait] = []

    def look(self, now: float, stopped: Collection[int] = ()) -> list[Wait]:
        """Who waits for whom, one for every idle rank. now: in seconds. stopped: ranks that are looked at elsewhere."""
        if now - self._last > OWN_PAUSE + EVERY:
            self._seen.clear()
        self._last = now
        if now - self._looked < EVERY:
            return self._found
        self._looked = now
        waited_for = self._waited_for(stopped)
        self._seen = {rank: self._state(rank, now) for rank in waited_for}
        self._named &= waited_for.keys()
        self._found = [Wait(waited_for[rank], rank, now - seen.since) for rank, seen in self._seen.items()]
        return self._found

    def to_name(self, waits: Sequence[Wait]) -> list[Wait]:
        """Those for long enough to be named, each once while it lasts."""
        found = [wait for wait in waits if wait.seconds >= NAMED and wait.idle not in self._named]
        self._named.update(wait.idle for wait in found)
        self._named -= {wait.idle for wait in waits if wait.seconds < NAMED}
        return found

    def _waited_for(self, stopped: Collection[int]) -> Mapping[int, int]:
        """The first rank that waits for each rank which runs and does not wait itself."""
        found: dict[int, int] = {}
        for rank, record in enumerate(self._records):
            if rank in stopped or record[STATE] != RUNNING or not record[WAITS]:
                continue
            for other in blockers(rank, self._records):
                entry = self._records[other]
                if other not in stopped and entry[STATE] == RUNNING and entry[PID] and not entry[WAITS]:
                    found.setdefault(other, rank)
        return found

    def _state(self, rank: int, now: float) -> _Seen:
        record = self._records[rank]
        core, moved = work_of(record[PID])
        seen = _Seen([record[word] for word in _WORDS], core, moved, now)
        before = self._seen.get(rank)
        if before is None or seen.words != before.words or moved != before.moved or core - before.core >= BUSY:
            return seen
        if state_of(record[PID]) in WORKING:
            return seen
        return _Seen(seen.words, core, moved, before.since)


def work_of(pid: int) -> tuple[float, int]:
    """Seconds of cores that a process and those below it have used, and bytes that they have read and written."""
    core, moved = 0.0, 0
    waiting = [pid]
    while waiting:
        process = f"/proc/{waiting.pop()}"
        try:
            with open(f"{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            core += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            with open(f"{process}/io", "rb") as file:
                moved += sum(int(line.split()[1]) for line in file if line.startswith((b"read_bytes", b"write_bytes")))
            for task in os.listdir(f"{process}/task"):
                with open(f"{process}/task/{task}/children", "rb") as file:
                    waiting += map(int, file.read().split())
        except (OSError, ValueError, IndexError):
            continue
    return core, moved
