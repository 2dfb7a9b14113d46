"""Messages for which ranks may wait, from their programs: the records of gloo have collectives alone.

A rank that has come to a collective has received all messages before it in its program; so their senders have sent
them, and have received all messages before these. If one rank has stopped, the others go on until they wait for a
message; if another one would come to its next collective, it is not that rank alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from mspc.runtime.faults.alignment import family
from mspc.runtime.faults.recorded_calls import Record, RecordedCall, last_numbers

COLLECTIVE, MESSAGE = "", re.compile(r"(?:recv|send) (\d+)(<-|->)(\d{1,9})")


class MessageProgress:
    """How far each rank has come in its program at least: in how many messages since a call that all ranks have.

    Args:
        begin: that call of each rank. steps: the calls of a step of each rank, also of ranks without a record.
    """

    def __init__(
        self, records: Sequence[Record], begin: Mapping[int, RecordedCall], steps: Mapping[int, Sequence[RecordedCall]]
    ) -> None:
        first = family(next(iter(begin.values())))
        self._known = {record.rank for record in records}
        self._kinds: dict[int, list[str]] = {}
        for rank, step in steps.items():
            place = [*map(family, step)].index(first) + 1
            after = *step[place:], *step[:place]
            self._kinds[rank] = [call.kind if call.is_message else COLLECTIVE for call in after]
        self._at = dict.fromkeys(self._kinds, 0)
        self._counts: dict[int, int] = {}
        for record in records:
            known = {family(call) for call in steps[record.rank] if not call.is_message}
            since = record.calls[record.calls.index(begin[record.rank]) + 1 :]
            count = self._counts[record.rank] = sum(family(call) in known for call in since)
            self._at[record.rank] = _position(self._kinds[record.rank], COLLECTIVE, count)
        for _ in self._at:
            before = dict(self._at)
            for rank, own in self._kinds.items():
                for kind in {*own}:
                    sender, sending = partner(kind)
                    if sender in self._kinds and sending.startswith("send"):
                        sent = _position(self._kinds[sender], sending, _count(own, kind, self._at[rank]))
                        self._at[sender] = max(self._at[sender], sent)
            if self._at == before:
                break

    def left_out(self) -> list[int]:
        """Return the ranks that have sent a message which is after more collectives than their records have."""
        counts = {rank: _count(self._kinds[rank], COLLECTIVE, self._at[rank]) for rank in self._counts}
        return [rank for rank, count in self._counts.items() if counts[rank] > count]

    def awaited(self, rank: int) -> int:
        """Return the other rank of the message that is the next call of a rank, or -1."""
        kinds = self._kinds[rank]
        return partner(kinds[self._at[rank] % len(kinds)])[0]

    def explains(self, culprit: int, free: Collection[int]) -> bool:
        """Return whether all ranks of `free`, which wait in no collective, wait for messages if this one has stopped:
        none of them comes to its next collective, which would be in its record. Gloo's sends wait for receivers."""
        at = dict(self._at)
        moving = [rank for rank in self._kinds if rank != culprit and (rank in free or rank not in self._known)]

        def kind_of(rank: int) -> str:
            return self._kinds[rank][at[rank] % len(self._kinds[rank])]

        def can_pass(rank: int, kind: str) -> bool:
            other, its_kind = partner(kind)
            if other not in at:
                return False
            has_come = other in moving and kind_of(other) == its_kind
            count = _count(self._kinds[rank], kind, at[rank])
            return _count(self._kinds[other], its_kind, at[other]) + has_come > count

        moved = True
        while moved:
            moved = False
            for rank in moving:
                while can_pass(rank, kind_of(rank)):
                    at[rank], moved = at[rank] + 1, True
                if kind_of(rank) == COLLECTIVE and rank in self._known:
                    return False
        return True


def message_progress(records: Sequence[Record], steps: Mapping[int, Sequence[RecordedCall]]) -> MessageProgress | None:
    """Return the progress of ranks in programs whose steps have these calls, or None if they have no call in common
    from which on it is known. Kinds of messages have numbers of ranks."""
    if not records or not all(steps.get(record.rank) for record in records):
        return None
    begin = _common_call(records, steps)
    return None if begin is None else MessageProgress(records, begin, steps)


def _common_call(
    records: Sequence[Record], steps: Mapping[int, Sequence[RecordedCall]]
) -> dict[int, RecordedCall] | None:
    """Return the last call of one group that all records have, and each program has once."""
    last = [last_numbers(record.calls) for record in records]
    for group in sorted(set.intersection(*(set(numbers) for numbers in last))):
        calls = {record.rank: {c.number: c for c in record.calls if c.group == group} for record in records}
        for number in sorted(set.intersection(*(set(each) for each in calls.values())), reverse=True):
            here = {rank: each[number] for rank, each in calls.items()}
            (kind, *others) = {family(call) for call in here.values()}
            if not others and all([*map(family, step)].count(kind) == 1 for step in steps.values()):
                return here
    return None


def _position(kinds: Sequence[str], kind: str, count: int) -> int:
    """Return the position after so many calls of a kind in a repeated step; 0 for none."""
    places = [i for i, each in enumerate(kinds) if each == kind]
    if not places or not count:
        return 0
    steps, rest = divmod(count - 1, len(places))
    return steps * len(kinds) + places[rest] + 1


def _count(kinds: Sequence[str], kind: str, at: int) -> int:
    """Return how many calls of a kind a repeated step has before a position."""
    steps, rest = divmod(at, len(kinds))
    return steps * kinds.count(kind) + kinds[:rest].count(kind)


def partner(kind: str) -> tuple[int, str]:
    """Return the other rank of a message, and the kind of its call; -1 if a call is no message of two known ranks."""
    found = MESSAGE.fullmatch(kind)
    if found is None:
        return -1, ""
    rank, way, other = found[1], found[2], int(found[3])
    return other, f"send {other}->{rank}" if way == "<-" else f"recv {other}<-{rank}"
