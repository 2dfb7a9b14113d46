"""Who waits for whom in a job: what a rank writes down while it waits, and the search for ranks that
wait for ever."""

from __future__ import annotations

import array
import zlib
from collections.abc import Sequence
from typing import Any

WORDS = 64
"""64-bit words of a rank's record."""

PID, NODE, STEP, STATE, WAITS, CALLS, GRAPH, MEETING, MARK, MEMBERS, RANKS = range(11)
"""Words of a record: process, node index (-1: none), step, state, whether it waits, how often it has
waited, graph, identity of the collective it is in (0: none that has one), where its GPU was last seen
(`runtime.stalled.packed`, 0: nowhere), number of ranks it waits for (-1: all), these ranks."""

ABSENT, RUNNING, ENDED, FAILED = range(4)
"""States of a rank."""

MOST_MEMBERS = 2 * (WORDS - RANKS)

ENDED_PATIENCE = 1.25
"""Seconds for which a rank may wait for one that has ended: what was sent before may still be on its way."""

STUCK_PATIENCE = 1.5
"""Seconds for which all ranks may wait in different collectives."""


class Waiting:
    """Entered while a rank waits for a group; one object per group.

    Args:
        own: the rank's record. ranks: whom it waits for. meets: all of them call the same collectives in
        the same order.
            channel: keeps groups of different uses apart.
    """

    def __init__(self, own: Any, ranks: tuple[int, ...], meets: bool, channel: int) -> None:
        self._own = own
        many = len(ranks) > MOST_MEMBERS
        members = array.array("i", () if many else ranks)
        if len(members) % 2:
            members.append(-1)
        self._count = -1 if many else len(ranks)
        self._members = memoryview(members).cast("B").cast("q") if members else None
        self._end = RANKS + len(members) // 2
        self._identity = (1 + zlib.crc32(f"{channel}:{ranks}".encode())) << 30 if meets else 0
        self._calls = 0

    def __enter__(self) -> None:
        own = self._own
        own[MEMBERS] = self._count
        if self._members is not None:
            own[RANKS : self._end] = self._members
        if self._identity:
            own[MEETING] = self._identity + self._calls
            self._calls = (self._calls + 1) % (1 << 30)
        else:
            own[MEETING] = 0
        own[WAITS] = 1

    def __exit__(self, *_: object) -> None:
        own = self._own
        own[WAITS] = 0
        own[CALLS] += 1


def members(record: Any, size: int) -> list[int]:
    """The ranks that a rank waits for."""
    count = record[MEMBERS]
    if count < 0:
        return list(range(size))
    words = record[RANKS : RANKS + (count + 1) // 2].tolist()
    return array.array("i", array.array("q", words).tobytes()).tolist()[:count]


class Stuck:
    """Looks for ranks that wait and can never go on."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self._since: dict[int, tuple[int, float]] = {}

    def look(self, now: float) -> tuple[int, int] | None:
        """(rank, the rank it waits for in vain) once it is certain, else None. `now` in seconds."""
        records = self._records
        states = [record[STATE] for record in records]
        waiting: dict[int, float] = {}
        for rank, record in enumerate(records):
            if states[rank] != RUNNING or not record[WAITS]:
                self._since.pop(rank, None)
                continue
            calls, since = self._since.get(rank, (-1, now))
            if calls != record[CALLS]:
                self._since[rank] = (record[CALLS], now)
                since = now
            waiting[rank] = now - since
        for rank, seconds in waiting.items():
            ended = [r for r in members(records[rank], len(records)) if states[r] == ENDED]
            if ended and seconds > ENDED_PATIENCE:
                return rank, ended[0]
        return self._crossed(waiting, states)

    def _crossed(self, waiting: dict[int, float], states: list[int]) -> tuple[int, int] | None:
        """Ranks that all wait, in collectives of which none is complete."""
        records = self._records
        alive = [rank for rank, state in enumerate(states) if state == RUNNING]
        if len(alive) < 2 or any(waiting.get(rank, 0.0) < STUCK_PATIENCE for rank in alive):
            return None
        for rank in alive:
            meeting = records[rank][MEETING]
            if not meeting:
                return None
            group = members(records[rank], len(records))
            if all(records[r][WAITS] and records[r][MEETING] == meeting for r in group):
                return None
        first = alive[0]
        group = members(records[first], len(records))
        return first, next(r for r in group if records[r][MEETING] != records[first][MEETING])
