"""Ranks that let others wait again and again, from the times of their calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import nlargest
from itertools import pairwise, zip_longest
from typing import NamedTuple

from mspc.runtime.faults.recorded_calls import Record, RecordedCall

SLOW, SLOW_FACTOR = 1_000_000_000, 20
"""Least delay of a slow rank, in nanoseconds, and beside a typical delay between two calls."""
MUCH, REPEATED = 3, 3
"""Delay of a slow rank beside that of half of the ranks, which may all compile, and times that it is late otherwise."""
FEW_MEMBERS = 2

Key = tuple[str, int]
"""Group and number of a collective."""


class LateRank(NamedTuple):
    """A slow rank, how long others have waited for it in nanoseconds, its first call that was late, and how many
    were."""

    rank: int
    delay: int
    call: RecordedCall
    times: int = REPEATED


class _Arrivals:
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

    def ready(self, call: RecordedCall) -> int:
        """Return the time from which on the rank of a call could go on."""
        key = call.group, call.number
        if call.ended or call.is_message:
            return call.ended or call.created
        if call.group in self.absent and key in self.resumed:  # when the rank without a record came is unknown
            return max(self.last[key], self.resumed[key][0])
        return self.last[key]


def late_ranks(
    records: Mapping[int, Record], members: Mapping[str, tuple[int, ...]], missing: tuple[int, ...]
) -> list[LateRank]:
    """Return the slow ranks, the one that is late most often first.

    A rank is late if it is idle for long after a collective to which all others had come, while they wait for it. One
    without a record is late if all members of a group with a record go on long after the last of them has come. If
    messages, which are not in the records, hide this, a rank is late that is the last of all again and again.
    """
    absent = {name: found[0] for name, ranks in members.items() if len(found := [*{*missing} & {*ranks}]) == 1}
    arrivals = _Arrivals(records, absent)
    delays: list[int] = []
    idle: list[tuple[int, int, RecordedCall]] = []
    for record in records.values():
        for before, call in pairwise(record.calls):
            delays.append(call.created - arrivals.ready(before))
            if before.ended or not before.kind.startswith("recv"):  # how long it waited is known
                idle.append((delays[-1], record.rank, call))
    if not delays:
        return []
    least = max(SLOW, SLOW_FACTOR * sorted(delays)[len(delays) // 2])
    for (group, number), (moment, call) in arrivals.resumed.items():
        if group in absent and (call.ended or len(members[group]) > FEW_MEMBERS):
            idle.append((moment - arrivals.last[group, number], absent[group], call))
    found: dict[int, list[tuple[int, RecordedCall]]] = defaultdict(list)
    for delay, rank, call in idle:
        if delay >= least:
            found[rank].append((delay, call))
    total = {rank: sum(delay for delay, _ in each) for rank, each in found.items()}
    half = sorted(total.get(rank, 0) for rank in records)[len(records) // 2]
    most = nlargest(2, total.values())
    slow = {rank for rank in found if rank in records and (total[rank] > MUCH * half or len(found[rank]) >= REPEATED)}
    if len(most) > 1 and most[0] < 1.1 * most[1]:  # a common reason, as a message that ranks wait for
        slow = {rank for rank in slow if len(found[rank]) > 1}

    def is_late(rank: int) -> bool:
        # All ranks pause after one line, to save parameters, as if a rank without a record were late there.
        return len(found[rank]) >= REPEATED and (bool(slow) or len({call.place for _, call in found[rank]}) > 1)

    def order(rank: int) -> tuple[bool, int, int, int]:
        # Slow ranks are the last of a group with others: these wait for messages of the rank without a record.
        explains = rank not in records and any(slow <= {*members[call.group]} for _, call in found[rank])
        return not explains and rank not in records, -explains, -len(found[rank]), -total[rank]

    ranks = sorted(slow | {rank for rank in found if rank not in records and is_late(rank)}, key=order)
    late = [LateRank(rank, total[rank], found[rank][0][1], len(found[rank])) for rank in ranks]
    late = late or _last_of_all(arrivals, members)
    last = _last_alone(records)
    if late and last and late[0].rank == last[0].rank:
        late[0] = late[0]._replace(times=REPEATED)
    return late or last


def _last_alone(records: Mapping[int, Record]) -> list[LateRank]:
    """Return the rank that has issued a call long after the last calls of all others: it does not wait, and these have
    given up."""
    latest = nlargest(2, ((record.calls[-1].created, rank) for rank, record in records.items() if record.calls))
    if len(latest) < 2 or latest[0][0] - latest[1][0] < SLOW:
        return []
    (moment, rank), (second, _) = latest
    return [LateRank(rank, moment - second, records[rank].calls[-1])]


def _last_of_all(arrivals: _Arrivals, members: Mapping[str, tuple[int, ...]]) -> list[LateRank]:
    """Return the rank that comes last, and long after the others, to most collectives of a group."""
    lags: dict[tuple[str, int], list[tuple[int, RecordedCall]]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for (group, _), here in arrivals.came.items():
        if len(here) == len(members.get(group, ())) > FEW_MEMBERS:
            counts[group] += 1
            (last, rank, call), (second, _, _) = nlargest(2, here)
            if last - second >= SLOW:
                lags[group, rank].append((last - second, call))
    often = [(sum(lag for lag, _ in each), rank, each[0][1]) for (group, rank), each in lags.items()
             if len(each) >= REPEATED and 2 * len(each) > counts[group]]  # fmt: skip
    return [LateRank(rank, delay, call) for delay, rank, call in sorted(often, reverse=True)[:1]]
