"""The rank that made a job hang, from the records of its ranks.

Ranks that run one program issue equal calls. Calls are compared in three ways, the strongest first:

1. A rank's calls beside those of other ranks with the same program, or beside its own earlier steps if too few run the
   program: one call that is left out, doubled, swapped with the next, or has another size, type or group.
   After the last common call a repeated call can be doubled, or follow one that is left out.
2. Who waits for whom: a rank that others wait for, and that waits for none itself, has stopped.
3. Times: a rank that comes late to a collective without having waited for another one is slow.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from mspc.runtime.faults.flight_records import Record, RecordedCall, last_numbers, read_record

SLOW, SLOW_FACTOR = 1_000_000_000, 20
"""Least delay of a slow rank, in nanoseconds, and beside a typical delay between two calls."""
RECEIVE = re.compile(r"recv \d+<-(\d+)")
MOST_EXPLANATIONS = 3
FEW_OTHERS = 2

Token = int


class HangCause(NamedTuple):
    """Why a job hangs, as far as records tell.

    rank: the culprit. fault: as "left out". call: its call, or for one that is left out that of another rank. certain:
    how much of the evidence agrees, from 0 to 1.
    """

    rank: int
    fault: str
    call: RecordedCall | None
    expected: RecordedCall | None = None
    certain: float = 1.0


class BlockedRank(NamedTuple):
    """A rank that has issued a call for which others have not come."""

    rank: int
    call: RecordedCall
    behind: tuple[int, ...]


class Hang(NamedTuple):
    """explanations: the most probable first, none if the records show no fault. waits: who waits for whom. missing:
    ranks without a record."""

    explanations: tuple[HangCause, ...]
    waits: tuple[BlockedRank, ...]
    missing: tuple[int, ...]


def explain(
    records: Sequence[Record], world: int = 0, steps: Mapping[int, Sequence[RecordedCall]] | None = None
) -> Hang:
    """Return the explanation of a hang.

    Args:
        world: number of ranks, if it is known. steps: the calls of a step of each rank, as its program has them; of
        these the kind and the line count.
    """
    ranks = {record.rank for record in records}
    members = _members(records)
    highest = max([*ranks, *(rank for group in members.values() for rank in group), world - 1], default=-1)
    missing = tuple(sorted(set(range(highest + 1)) - ranks))
    waits = _waits(records, members)
    tokens = _Tokens()
    sequences = {record.rank: tokens.of(record) for record in records}
    by_rank = {record.rank: record for record in records}
    clusters = _clusters(sequences)
    programs = {record.rank: _beside_program(record, (steps or {}).get(record.rank, ())) for record in records}
    edits = [edit for edit, _ in programs.values() if edit is not None]
    if len(edits) != 1:  # a program does not have the sizes and groups that ranks compare with each other
        edits = [edit for cluster in clusters for edit in _edits(cluster, sequences, by_rank)] or edits
    edits.sort(key=lambda edit: (-edit.certain, _created(edit)))
    following = _following(clusters, by_rank)
    following |= {rank: call for rank, (_, call) in programs.items() if call is not None}
    found = edits or _stopped(by_rank, waits, missing, members, following) or _slow(records)
    return Hang(tuple(found[:MOST_EXPLANATIONS]), waits, missing)


def with_all_calls(records: Sequence[Record], found: Hang) -> list[Record]:
    """Return the records with all calls of the ranks in the explanations, and of some with equal programs, if only the
    last ones were read: a fault may be older than these. Raise MspcError if a file cannot be read again."""
    if not any(record.dropped for record in records):
        return [*records]
    tokens = _Tokens()
    sequences = {record.rank: tokens.of(record) for record in records}
    named = {each.rank for each in found.explanations}
    for cluster in _clusters(sequences):
        if not named.isdisjoint(cluster):
            named |= {*cluster[:FEW_OTHERS], *cluster[-FEW_OTHERS:]}
    return [read_record(record.path) if record.rank in named and record.dropped else record for record in records]


def _created(edit: HangCause) -> int:
    return edit.call.created if edit.call is not None else 0


def _members(records: Sequence[Record]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group: as recorded, or else those that have calls in it."""
    found: dict[str, set[int]] = defaultdict(set)
    for record in records:
        for name, ranks in record.members.items():
            found[name].update(ranks)
        for name in {call.group for call in record.calls}:
            found[name].add(record.rank)
    return {name: tuple(sorted(ranks)) for name, ranks in found.items()}


# Calls of ranks with the same program


class _Tokens:
    """Numbers for calls that are equal on ranks with the same program.

    Ranks have other groups at one place of the program, so that a group counts only if it is not the one that the rank
    has at that place elsewhere.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, Token] = {}

    def of(self, record: Record) -> list[Token]:
        usual: dict[Any, Counter[str]] = defaultdict(Counter)
        for call in record.calls:
            usual[call.kind, call.stack][call.group] += 1
        groups = {place: counts.most_common(1)[0][0] for place, counts in usual.items()}
        numbers = self._numbers
        return [
            numbers.setdefault(
                (c.kind, c.sizes, c.dtypes, c.stack, c.group == groups[c.kind, c.stack]), len(numbers)
            )
            for c in record.calls
        ]


def _clusters(sequences: Mapping[int, Sequence[Token]]) -> list[list[int]]:
    """Ranks that run the same program: all calls that one of them has, but for single ones, the others have too."""
    kinds: dict[frozenset[Token], list[int]] = defaultdict(list)
    for rank, tokens in sequences.items():
        kinds[frozenset(tokens)].append(rank)
    clusters: list[tuple[frozenset[Token], frozenset[Token], list[int]]] = []
    for tokens, ranks in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[1])):
        counts = Counter(sequences[ranks[0]])
        several = frozenset(token for token in tokens if counts[token] > 1)
        for all_of_it, several_of_it, others in clusters:
            if several <= all_of_it and several_of_it <= tokens:
                others.extend(ranks)
                break
        else:
            clusters.append((tokens, several, [*ranks]))
    return [sorted(ranks) for _, _, ranks in clusters]


def _edits(
    ranks: Sequence[int], sequences: Mapping[int, Sequence[Token]], records: Mapping[int, Record]
) -> list[HangCause]:
    """The ranks of a cluster whose calls are not those of most others, each with its first difference. A rank without
    others, or with one that it differs from, is held to its own earlier steps."""
    model = _model(ranks, sequences, records)
    if len(ranks) == 1:
        return [edit for edit in (_own_edit(records[model], sequences[model]),) if edit is not None]
    edits = [
        edit for rank in ranks if rank != model
        for edit in (_first_edit(records[rank], sequences[rank], records[model], sequences[model]),) if edit is not None
    ]  # fmt: skip
    if len(ranks) > 2 or not edits:
        return edits
    own = [edit for rank in ranks for edit in (_own_edit(records[rank], sequences[rank]),) if edit is not None]
    if len(own) == 1:
        return own
    (other,) = {*ranks} - {model}
    turned = _first_edit(records[model], sequences[model], records[other], sequences[other])
    return [edit._replace(certain=0.5) for edit in (*edits, turned) if edit is not None]


def _own_edit(record: Record, tokens: Sequence[Token]) -> HangCause | None:
    """The first call that is not as in the rank's step before."""
    period, count = _period(tokens)
    if not period or not count:
        return None
    return _first_edit(record, tokens, record._replace(dropped=record.dropped + period), tokens)


# Calls of a rank beside its program

MOST_BEFORE, LEAST_RUN = 200, 3
"""Most calls before the first step, as broadcasts of parameters, and least calls of a program in a row."""
FAMILIES = (("scatter", "scatter"), ("gather", "gather"), ("all_?to_?all", "exchange"), ("reduce", "reduce"))


def family(call: RecordedCall) -> tuple[str, str]:
    """Return the kind and the line of a call as its program has them, too: names of a collective differ between
    libraries, and paths between machines."""
    kind = next((name for pattern, name in FAMILIES if re.search(pattern, call.kind)), call.kind.partition(" ")[0])
    return kind, call.place.rpartition("/")[2]


def _in_program(record: Record, step: Sequence[RecordedCall]) -> tuple[int, int]:
    """The first call of a record that is in its program, and where in the step it is; the pair from which on most calls
    are equal."""
    mine, its = [family(call) for call in record.calls], [family(call) for call in step]
    where: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, each in enumerate(its):
        where[each].append(place)
    best = (0, 0, 0)
    for first, each in enumerate(mine[: MOST_BEFORE if not record.dropped else 1]):
        for place in where.get(each, ()):
            count = next((i for i, own in enumerate(mine[first:]) if own != its[(place + i) % len(its)]), len(mine))
            best = max(best, (count, -first, place), key=lambda found: found[:2])
        if best[0] >= LEAST_RUN:
            break
    return -best[1], best[2]


def _beside_program(record: Record, step: Sequence[RecordedCall]) -> tuple[HangCause | None, RecordedCall | None]:
    """Return the first call that is not as in the program, and the call after the last one, as far as there are any."""
    if not step or not record.calls:
        return None, None
    first, place = _in_program(record, step)
    calls = record.calls[first:]
    model = tuple(step[(place + i) % len(step)] for i in range(len(calls) + 2))
    numbers: dict[Any, Token] = {}
    mine, its = ([numbers.setdefault(family(c), len(numbers)) for c in each] for each in (calls, model))
    own, other = (record._replace(calls=each, dropped=0) for each in (calls, model))
    return _first_edit(own, mine, other, its), model[len(calls)]


def _model(ranks: Sequence[int], sequences: Mapping[int, Sequence[Token]], records: Mapping[int, Record]) -> int:
    """The rank whose beginning most others share; of these the one with most calls."""
    sharing: dict[Any, list[int]] = defaultdict(list)
    shortest = min(len(sequences[rank]) + records[rank].dropped for rank in ranks)
    start = max(records[rank].dropped for rank in ranks)
    for rank in ranks:
        at = records[rank].dropped
        sharing[tuple(sequences[rank][start - at : max(shortest - at, 0)])].append(rank)
    most = max(sharing.values(), key=len)
    return max(most, key=lambda rank: len(sequences[rank]))


def _first_edit(
    record: Record, tokens: Sequence[Token], model: Record, others: Sequence[Token]
) -> HangCause | None:
    """The first call of a rank that is not as the model's, with the change that makes most of the rest equal."""
    start = max(record.dropped, model.dropped)
    mine, its = tokens[start - record.dropped :], others[start - model.dropped :]
    at = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), None)
    if at is None:
        return None
    repeated = at > 0 and mine[at] == mine[at - 1]
    crossed = list(mine[at : at + 2]) == list(its[at : at + 2])[::-1]
    evidence = {
        "left out": _equal(mine, its, at, at + 1),
        "doubled": 1 + _equal(mine, its, at + 1, at) if repeated else -1,
        "swapped": 2 + _equal(mine, its, at + 2, at + 2) if crossed else -1,
        "other": _equal(mine, its, at + 1, at + 1),
    }
    fault = max(evidence, key=lambda each: evidence[each])
    if fault == "doubled" and evidence["doubled"] == 1:  # no later call tells these two apart
        fault = "doubled or left out"
    index = start - record.dropped + at
    own = record.calls[index] if index < len(record.calls) else None
    expected = model.calls[start - model.dropped + at]
    if fault == "other" and own is not None:
        fault = _difference(own, expected)
    return HangCause(record.rank, fault, expected if fault == "left out" else own, expected)


def _equal(one: Sequence[Token], other: Sequence[Token], first: int, second: int) -> int:
    """How many calls in a row are equal from two positions on."""
    count = 0
    for a, b in zip(one[first:], other[second:], strict=False):
        if a != b:
            break
        count += 1
    return count


def _difference(own: RecordedCall, expected: RecordedCall) -> str:
    if family(own) != family(expected) or not expected.sizes:
        return "another collective"
    if own.sizes != expected.sizes:
        return "another size"
    return "another type" if own.dtypes != expected.dtypes else "another group"


def _period(tokens: Sequence[Token]) -> tuple[int, int]:
    """Return the length of a step in calls, and how many calls are not those of the step before; (0, 0) if no length
    makes most of them equal."""
    best = (0, len(tokens) // 4)
    places: dict[Token, list[int]] = defaultdict(list)
    for place, token in enumerate(tokens):
        places[token].append(place)
    several = [those for those in places.values() if len(those) > 1]
    rare = min(several, key=len, default=[])
    for period in sorted({b - a for a, b in pairwise(rare)} | {rare[-1] - rare[0]} if len(rare) > 1 else ()):
        count = sum(a != b for a, b in zip(tokens, tokens[period:], strict=False))
        if period * 2 <= len(tokens) and count < best[1]:
            best = (period, count)
    return best if best[0] else (0, 0)


# Who waits for whom


def _waits(records: Sequence[Record], members: Mapping[str, tuple[int, ...]]) -> tuple[BlockedRank, ...]:
    """The last call of each rank, if not all members of its group have come to it. A receive that is not over waits for
    its sender."""
    reached = {(name, each.rank): number for each in records for name, number in last_numbers(each.calls).items()}
    whole = {record.rank for record in records if not record.dropped}
    found: list[BlockedRank] = []
    for record in records:
        if not record.calls:
            continue
        call = record.calls[-1]
        group = members[call.group]
        if not call.is_message:
            known = [rank for rank in group if rank in whole or (call.group, rank) in reached]
            behind = tuple(rank for rank in known if reached.get((call.group, rank), 0) < call.number)
        else:
            source = RECEIVE.fullmatch(call.kind)
            is_known = source is not None and not call.is_over and int(source[1]) < len(group)
            behind = (group[int(source[1])],) if source is not None and is_known else ()
        if behind:
            found.append(BlockedRank(record.rank, call, behind))
    return tuple(found)


def _stopped(
    records: Mapping[int, Record], waits: Sequence[BlockedRank], missing: Sequence[int],
    members: Mapping[str, tuple[int, ...]], following: Mapping[int, RecordedCall],
) -> list[HangCause]:
    """The ranks that others wait for, and that wait for none; if these wait for a rank without a record, that one.

    following: the call that a rank would have issued next, if it is known.
    """
    waiting = {wait.rank for wait in waits}
    for_whom: Counter[int] = Counter(rank for wait in waits for rank in wait.behind if rank not in waiting)
    pending = [rank for rank, record in records.items() if record.calls and not record.calls[-1].is_over]
    if not for_whom and not waits and pending and missing:
        call = records[pending[0]].calls[-1]
        return [HangCause(rank, "no record", call, certain=1 / len(missing)) for rank in missing]
    idle = [rank for rank, _ in for_whom.most_common()] or [rank for rank in pending if rank not in waiting]
    found: list[HangCause] = []
    for rank in idle:
        record = records.get(rank)
        last = record.calls[-1] if record is not None and record.calls else None
        if last is not None and missing and _lacks_member(last, records, members, missing):
            found += [HangCause(other, "no record", last, certain=1 / len(missing)) for other in missing]
            break
        call = following.get(rank) or next((wait.call for wait in waits if rank in wait.behind), None)
        if for_whom[rank]:
            found.append(HangCause(rank, "stopped before", call, None, for_whom[rank] / max(len(waits), 1)))
    return found


def _lacks_member(
    call: RecordedCall, records: Mapping[int, Record], members: Mapping[str, tuple[int, ...]], missing: Sequence[int]
) -> bool:
    """Whether the group of a call has, or seems to have, a member without a record: the groups in which other ranks
    issue that call have more members."""
    own = members[call.group]
    if not {*own}.isdisjoint(missing):
        return True
    calls = (each for record in records.values() for each in record.calls)
    alike = {each.group for each in calls if (each.kind, each.stack) == (call.kind, call.stack)}
    return len(own) < max((len(members[name]) for name in alike), default=0)


def _following(
    clusters: Sequence[Sequence[int]], records: Mapping[int, Record]
) -> dict[int, RecordedCall]:
    """The call after the last one of a rank, from the rank of its cluster that has come furthest."""
    found: dict[int, RecordedCall] = {}
    for ranks in clusters:
        furthest = max((records[rank] for rank in ranks), key=lambda record: record.dropped + len(record.calls))
        for rank in ranks:
            at = records[rank].dropped + len(records[rank].calls) - furthest.dropped
            if 0 <= at < len(furthest.calls):
                found[rank] = furthest.calls[at]
    return found


# Times


def _slow(records: Sequence[Record]) -> list[HangCause]:
    """The rank that was idle for long after a collective to which all others had come, while they waited for it."""
    arrival: dict[tuple[str, int], int] = {}
    for record in records:
        for call in record.calls:
            if not call.is_message:
                key = call.group, call.number
                arrival[key] = max(arrival.get(key, 0), call.created)
    idle: list[tuple[int, int, RecordedCall]] = []
    delays: list[int] = []
    for record in records:
        for before, call in pairwise(record.calls):
            ready = before.created if before.is_message else arrival[before.group, before.number]
            delays.append(call.created - ready)
            if before.kind.startswith("recv"):
                continue  # how long it waited is unknown
            idle.append((call.created - ready, record.rank, call))
    late = [each for each in idle if each[0] >= SLOW]
    if not late:
        return []
    delay, rank, call = max(late, key=lambda item: item[0])
    typical = sorted(delays)[len(idle) // 2]
    return [HangCause(rank, "late at", call)] if delay > SLOW_FACTOR * typical else []
