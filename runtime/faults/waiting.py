"""This module knows which rank of a job waits for which, and searches for ranks that wait for ever."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from mspc.runtime.faults.record import (
    CALLS,
    ENDED,
    MEETING,
    MEMBERS,
    PID,
    RANKS,
    RUNNING,
    STATE,
    WAITS,
    count,
    group_of,
    members,
    messages_of,
    received,
    sent,
    slot,
    write_members,
)

PATIENCE = 1.5
"""Seconds for which ranks must have been seen to wait in vain."""

OWN_PAUSE = 1.0
"""Seconds between two looks after which whoever looks has been stopped itself, and knows nothing of that time."""


class Waiting:
    """Entered while a rank waits for others; one object for all calls of one kind.

    Args:
        own: the rank's record. ranks: whom it waits for. meeting: what for, as in the record. counted: what its calls
        count as, see `record.identity`.
    """

    def __init__(self, own: Any, ranks: tuple[int, ...], meeting: int, counted: Iterable[int]) -> None:
        self._own = own
        self._count, self._members, self._end = write_members(ranks)
        found = [slot(own, what) for what in counted]
        known = None not in found and self._count >= 0
        self._slots = tuple(at for at in found if at is not None)
        self._meeting = meeting if known else 0

    def __enter__(self) -> None:
        own = self._own
        own[MEMBERS] = self._count
        if self._members is not None:
            own[RANKS : self._end] = self._members
        own[MEETING] = self._meeting
        for at in self._slots:
            own[at] += 1
        own[WAITS] = 1

    def __exit__(self, *_: object) -> None:
        own = self._own
        own[WAITS] = 0
        own[CALLS] += 1


def in_group(own: Any, ranks: tuple[int, ...], channel: int) -> Waiting:
    """A rank's waiting in a collective: all of `ranks` call the same ones in the same order."""
    group = group_of(channel, ranks)
    return Waiting(own, ranks, group, (group,))


def for_messages(own: Any, rank: int, to: tuple[int, ...], of: tuple[int, ...], channel: int) -> Waiting:
    """The waiting of `rank` for one message to each of `to` and one from each of `of` to be over."""
    counted = [sent(channel, rank, target) for target in to] + [received(channel, source, rank) for source in of]
    return Waiting(own, tuple(dict.fromkeys([*of, *to])), messages_of(channel), counted)


def blockers(rank: int, records: Sequence[Any]) -> list[int]:
    """The ranks that have not come yet to where `rank` waits for them."""
    own = records[rank]
    meeting = own[MEETING]
    others = [member for member in members(own) if member != rank]
    if meeting >= 0:
        calls = count(own, meeting) if meeting else 0
        return [other for other in others if count(records[other], meeting) < calls]
    channel = -1 - meeting

    def owes(other: int) -> bool:
        heard, said = received(channel, other, rank), sent(channel, rank, other)
        return count(records[other], sent(channel, other, rank)) < count(own, heard) or count(
            records[other], received(channel, rank, other)
        ) < count(own, said)

    return [other for other in others if owes(other)]


class Start:
    """Measures how long a rank has waited in a collective that every rank of this host has begun.

    Before the first step no data travels, so that nothing but a broken connection holds up such a collective. Ranks of
    other hosts have no record here; they leave MPI's start at the same time.
    """

    def __init__(self, rank: int, records: Sequence[Any]) -> None:
        self._rank = rank
        self._records = records
        self._seen: list[int] = []
        self._since = self._last = 0.0

    def look(self, now: float, stopped: Collection[int] = ()) -> float:
        """Return the seconds for which nothing has moved; 0 while some rank has still to come."""
        records, own = self._records, self._records[self._rank]
        calls = [record[CALLS] for record in records]
        paused = now - self._last > OWN_PAUSE
        self._last = now
        comes = stopped or not own[WAITS] or any(records[other][PID] for other in blockers(self._rank, records))
        if comes or paused or calls != self._seen:
            self._seen, self._since = calls, now
        return now - self._since


class DeadlockDetector:
    """Looks for ranks that wait and can never continue: for one that has ended, or for one another.

    A rank is waited for in vain only where it has not begun the call that it is waited for in, so that one that stands
    still for a while in a call that others have left holds up nobody.
    """

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self._since: dict[int, tuple[int, float]] = {}
        self._last = 0.0

    def look(self, now: float, stopped: Collection[int] = ()) -> tuple[int, int] | None:
        """(rank, the rank it waits for in vain) once it is certain, else None.

        Args:
            now: in seconds. stopped: ranks whose processes do not run, of which nothing is known.
        """
        if now - self._last > OWN_PAUSE:
            self._since.clear()
        self._last = now
        records = self._records
        waiting = {
            rank: found
            for rank, record in enumerate(records)
            if rank not in stopped and record[STATE] == RUNNING and record[WAITS] and (found := blockers(rank, records))
        }
        doomed = self._in_vain(waiting)
        self._since = {rank: self._seen(rank, now) for rank in doomed}
        certain = self._in_vain({r: waiting[r] for r in doomed if now - self._since[r][1] >= PATIENCE})
        for rank in certain:
            ended = [other for other in waiting[rank] if records[other][STATE] == ENDED]
            if ended:
                return rank, ended[0]
        return next(((rank, next(o for o in waiting[rank] if o in certain)) for rank in certain), None)

    def _seen(self, rank: int, now: float) -> tuple[int, float]:
        calls = self._records[rank][CALLS]
        before = self._since.get(rank)
        return before if before is not None and before[0] == calls else (calls, now)

    def _in_vain(self, waiting: dict[int, list[int]]) -> list[int]:
        """Of the ranks that wait for others those that can never continue, ascending."""
        found = set(waiting)
        while True:
            left = {
                rank for rank in found if any(o in found or self._records[o][STATE] == ENDED for o in waiting[rank])
            }
            if left == found:
                return sorted(found)
            found = left
