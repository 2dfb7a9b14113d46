"""Messages for which ranks may wait, from their programs: the records of gloo have collectives alone.

A rank that has come to a collective has received all messages before it in its program; so their senders have sent
them, and have received all messages before these. If one rank has stopped, the others go on until they wait for a
message; if another one would come to its next collective, it is not that rank alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mspc.runtime.faults.alignment import family
from mspc.runtime.faults.recorded_calls import Record, RecordedCall, last_numbers

COLLECTIVE, NONE = "", "no message"


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
        self._kinds = {rank: _kinds_after(step, first) for rank, step in steps.items()}
        self._at = dict.fromkeys(self._kinds, 0)
        for record in records:
            known = {family(call) for call in steps[record.rank] if not call.is_message}
            since = record.calls[record.calls.index(begin[record.rank]) + 1 :]
            count = sum(family(call) in known for call in since)
            self._at[record.rank] = _position(self._kinds[record.rank], COLLECTIVE, count)
        for _ in self._at:
            before = dict(self._at)
            for rank, own in self._kinds.items():
                for kind in {*own}:
                    if kind.startswith("recv") and (sender := _sender(kind)) in self._kinds:
                        sent = _position(self._kinds[sender], _sending(kind), _count(own, kind, self._at[rank]))
                        self._at[sender] = max(self._at[sender], sent)
            if self._at == before:
                break

    def explains(self, culprit: int, free: Collection[int]) -> bool:
        """Return whether all ranks of `free`, which wait in no collective, wait for messages if this one has stopped:
        none of them comes to its next collective, which would be in its record. A message to a rank without a record
        fails."""
        at = dict(self._at)
        moving = [rank for rank in self._kinds if rank != culprit and (rank in free or rank not in self._known)]
        moved = True
        while moved:
            moved = False
            for rank in moving:
                own = self._kinds[rank]
                failing = NONE if culprit in self._known else f"send {rank}->{culprit}"
                while (kind := own[at[rank] % len(own)]) != failing and self._can_pass(rank, kind, at):
                    at[rank], moved = at[rank] + 1, True
                if own[at[rank] % len(own)] == COLLECTIVE and rank in self._known:
                    return False
        return True

    def _can_pass(self, rank: int, kind: str, at: Mapping[int, int]) -> bool:
        if not kind.startswith("recv"):
            return kind != COLLECTIVE
        sender = _sender(kind)
        received = _count(self._kinds[rank], kind, at[rank])
        return sender in at and _count(self._kinds[sender], _sending(kind), at[sender]) > received


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


def _kinds_after(step: Sequence[RecordedCall], first: tuple[str, str]) -> list[str]:
    """Return the kinds of the calls of a repeated step from the one after `first` on."""
    place = [*map(family, step)].index(first) + 1
    return [call.kind if call.is_message else COLLECTIVE for call in (*step[place:], *step[:place])]


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


def _sender(kind: str) -> int:
    return int(kind.rpartition("<-")[2])


def _sending(kind: str) -> str:
    """Return the kind of the sender's call for one that receives."""
    receiver, _, sender = kind.removeprefix("recv ").partition("<-")
    return f"send {sender}->{receiver}"
