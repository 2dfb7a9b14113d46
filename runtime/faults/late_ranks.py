"""Ranks that let others wait again and again, from the times of their calls."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import nlargest
from itertools import accumulate, pairwise, zip_longest
from typing import NamedTuple

from mspc.runtime.faults.message_waits import partner
from mspc.runtime.faults.recorded_calls import Record, RecordedCall

SLOW, SLOW_FACTOR = 1_000_000_000, 20
"""Least delay of a slow rank, in nanoseconds, and beside a typical delay between two calls."""
REPEATED, ALIKE = 3, 1.1
"""Least times that a slow rank is late, and how many times as often as another one it is."""

Key = tuple[str, int]
"""Group and number of a collective."""


class LateRank(NamedTuple):
    """A slow rank, how long others have waited for it in nanoseconds, and its first call that was late."""

    rank: int
    delay: int
    call: RecordedCall


class Arrivals:
    """The (time, rank, call) of the members of each collective, and the first time at which one goes on."""

    def __init__(self, records: Mapping[int, Record], absent: Mapping[str, int]) -> None:
        self.absent = absent
        self.came: dict[Key, list[tuple[int, int, RecordedCall]]] = defaultdict(list)
        self.resumed: dict[Key, tuple[int, RecordedCall]] = {}
        for record in records.values():
            for call, after in zip_longest(record.calls, record.calls[1:]):
                if call.is_message:
                    continue
                key = call.group, call.number
                self.came[key].append((call.created, record.rank, call))
                moment = call.ended or (after.created if after is not None else 0)
                if moment and (key not in self.resumed or moment < self.resumed[key][0]):
                    self.resumed[key] = moment, call
        self.last = {key: max(here)[0] for key, here in self.came.items()}
        calls = [call for record in records.values() for call in record.calls if call.ended]
        self._spans = sorted((call.created, call.ended) for call in calls)
        self._ends = [*accumulate((ended for _, ended in self._spans), max)]

    def lag(self, call: RecordedCall) -> int | None:
        """Return how long after the last other member of its group a rank has issued a call; None if no other one has
        a record of it, or it is a message."""
        here = self.came.get((call.group, call.number), ())
        return None if call.is_message or len(here) < 2 else call.created - nlargest(2, here)[1][0]

    def is_awaited(self, moment: int, least: int) -> bool:
        """Return whether a rank has been in a call for so long at a moment, if records have ends of calls."""
        at = bisect_right(self._spans, (moment - least + 1,)) - 1
        return not self._spans or (at >= 0 and self._ends[at] >= moment)

    def ready(self, call: RecordedCall) -> int:
        """Return the time from which on the rank of a call could go on."""
        key = call.group, call.number
        if call.ended or call.is_message:
            return call.ended or call.created
        if call.group in self.absent and key in self.resumed:  # when the rank without a record came is unknown
            return max(self.last[key], self.resumed[key][0])
        return self.last[key]


def late_ranks(
    records: Mapping[int, Record], members: Mapping[str, tuple[int, ...]], missing: tuple[int, ...],
    steps: Mapping[int, Sequence[RecordedCall]],
) -> list[LateRank]:  # fmt: skip
    """Return the slow ranks, the one that is late most often first; of two that are late together the one whose
    messages other late ranks wait for. steps: the calls of a step of each rank, if its program is known.

    A rank is late if it is idle for long after a collective to which all others had come, while they wait for it. One
    without a record is late if all members of a group with a record go on long after the last of them has come.
    """
    absent = {name: found[0] for name, ranks in members.items() if len(found := [*{*missing} & {*ranks}]) == 1}
    arrivals = Arrivals(records, absent)
    delays: list[int] = []
    pauses: list[tuple[int, int, RecordedCall, RecordedCall]] = []
    for record in records.values():
        for before, call in pairwise(record.calls):
            delays.append(call.created - arrivals.ready(before))
            # Nobody waits for a rank that receives, and for how long a rank has received may be unknown.
            if not call.kind.startswith("recv") and (before.ended or not before.kind.startswith("recv")):
                pauses.append((delays[-1], record.rank, before, call))
    if not delays:
        return []
    least = max(SLOW, SLOW_FACTOR * sorted(delays)[len(delays) // 2])
    # Others wait from the last of them on: a common reason, as a message, or a pause of all, makes none of them slow.
    pauses = [each for each in pauses if each[0] >= least and arrivals.is_awaited(each[3].created, least)]
    lags = {call: arrivals.lag(call) for *_, call in pauses}
    common = {call.place for call, lag in lags.items() if lag is not None and lag < least}
    idle = [
        (delay, rank, call) for delay, rank, _, call in pauses
        if (call.place not in common if (lag := lags[call]) is None else lag >= least)
    ]  # fmt: skip
    paused = {before.place for _, _, before, _ in pauses}
    late_in: set[str] = set()
    for (group, number), (moment, call) in arrivals.resumed.items():
        if group in absent and (delay := moment - arrivals.last[group, number]) >= least:
            late_in.add(group)
            if call.ended or len(members[group]) > 2:
                idle.append((delay, absent[group], call))
            elif call.place not in paused:  # of two ranks, one without a record, either can be late
                idle += [(delay, either, call) for either in members[group]]
    found: dict[int, list[tuple[int, RecordedCall]]] = defaultdict(list)
    for delay, rank, call in idle:
        found[rank].append((delay, call))
    total = {rank: sum(delay for delay, _ in each) for rank, each in found.items()}

    def is_late(rank: int) -> bool:
        # In several groups, and all: all ranks pause after one line, to save parameters, as if it were late there.
        first = min(call.created for _, call in found[rank])
        met = {key[0] for key, (moment, _) in arrivals.resumed.items() if absent.get(key[0]) == rank and moment > first}
        return met <= late_in and (len(met) > 1 or all(call.ended for _, call in found[rank]))

    often = [rank for rank in sorted(found) if len(found[rank]) >= REPEATED]
    most = nlargest(2, (len(found[rank]) for rank in often if rank in records))
    if len(most) > 1 and most[0] < ALIKE * most[1]:  # a common reason, as a message that ranks wait for
        often = [rank for rank in often if rank not in records]
    ranks = [rank for rank in often if rank in records or is_late(rank)]
    times = {rank: len(each) for rank, each in found.items()}
    most_often = max((times[rank] for rank in ranks), default=0)

    def order(rank: int) -> tuple[bool, int, int, bool, int]:
        partners = {partner(call.kind)[0] for call in steps.get(rank, ()) if call.is_message}
        waiting = sum(times.get(other, 0) for other in partners)
        return ALIKE * times[rank] < most_often, -waiting, -times[rank], rank in records, -total[rank]

    ranks.sort(key=order)
    late = [LateRank(rank, total[rank], found[rank][0][1]) for rank in ranks]
    return late or _last_alone(records)


def _last_alone(records: Mapping[int, Record]) -> list[LateRank]:
    """Return the rank that has issued a call long after the last calls of all others: it does not wait, and these have
    given up."""
    latest = nlargest(2, ((record.calls[-1].created, rank) for rank, record in records.items() if record.calls))
    if len(latest) < 2 or latest[0][0] - latest[1][0] < SLOW:
        return []
    (moment, rank), (second, _) = latest
    return [LateRank(rank, moment - second, records[rank].calls[-1])]
