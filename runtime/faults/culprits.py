"""The rank that made a job hang, from the records of its ranks.

Ranks that run one program issue equal calls. Evidence is taken in this order, the strongest first:

1. A rank's calls differ from those of other ranks with its program, or from its program (`runtime.faults.alignment`).
2. Members of a group have met in one call of it with different collectives: most of them are right.
3. A rank that others wait for, and that waits for none itself, has stopped, or has no record.
4. A rank that comes late to a collective without having waited for another one is slow.

A rank that raises an exception of its own, or is killed, is the cause, unless calls differ for certain before its end.
A rank that aborts, or that has an exception of a collective, is no evidence beside calls that differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from mspc.runtime.faults.alignment import (
    WINDOW,
    Alignment,
    BesideProgram,
    HangCause,
    beside_program,
    difference,
    is_repeated,
    sharing,
)
from mspc.runtime.faults.formats.reading import read_record_file
from mspc.runtime.faults.late_ranks import Arrivals, late_ranks
from mspc.runtime.faults.message_waits import MessageProgress, message_progress, partner
from mspc.runtime.faults.recorded_calls import RankEnd, Record, RecordedCall, last_numbers, world_of

COUNTED = ("left out", "doubled", "added", "doubled or left out")
"""Faults after which a rank has issued more or fewer calls of a group than its other members."""
UNLIKE_BEFORE = ("doubled", "another group", "another size")
"""Faults of the call in which a rank waits that its own earlier calls show."""
DIED, STOPPED, LOST = "died", "stopped before", "no record"
OUTSIDE = (STOPPED, LOST)
"""Faults of ranks that are in no call."""
MAX_EXPLANATIONS = 3
FEW_OTHERS, NEAR = 2, 3


class BlockedRank(NamedTuple):
    """A rank that has issued a call for which others have not come. since: time of the call in nanoseconds, or 0."""

    rank: int
    call: RecordedCall
    behind: tuple[int, ...]
    since: int


class Hang(NamedTuple):
    """explanations: the most probable first, none if the records show no fault. waits: who waits for whom. missing:
    ranks without a record. late: slow ranks and how long others have waited for them, in nanoseconds. wrong_from: the
    first call of the culprit that can have met another collective of the others, from which on numbers are wrong. step:
    of the fault, from 1 on, 0 if it is unknown."""

    explanations: tuple[HangCause, ...]
    waits: tuple[BlockedRank, ...]
    missing: tuple[int, ...]
    late: tuple[tuple[int, int], ...] = ()
    wrong_from: RecordedCall | None = None
    step: int = 0


def explain(
    records: Sequence[Record], world: int = 0, steps: Mapping[int, Sequence[RecordedCall]] | None = None
) -> Hang:
    """Return the explanation of a hang. world: number of ranks, if it is known. steps: the calls of a step of each
    rank, as its program has them; of these the kind and the line count."""
    ends = {record.rank: record.end for record in records if record.end is not None}
    records, world = [record for record in records if record.calls or record.end is None], world_of(records, world)
    programs = {record.rank: beside_program(record, (steps or {}).get(record.rank, ())) for record in records}
    alignment = Alignment(records, steps)
    is_in_step = bool(programs) and all(each.is_in_step for each in programs.values())
    state = _State(records, world, bool(ends) or is_in_step or alignment.is_in_step())
    late = late_ranks(state.records, state.members, state.missing, steps or {})
    equal = [each for each in late if each.delay == late[0].delay]
    slow = [HangCause(each.rank, "late at", each.call, certain=1 / len(equal)) for each in equal]
    found = _with_deaths(_faults(state, alignment, programs, steps or {}), ends, alignment) or slow
    if slow and found != slow and (found[0].certain < 1 or found[0].fault == LOST):  # a record can be lost otherwise
        found = slow + [each._replace(certain=min(each.certain, 0.5)) for each in found]
    distinct: dict[Any, HangCause] = {}
    for each in found:
        distinct.setdefault((each.rank, each.fault, each.call and each.call.place), each)
    wrong = state.met_another(found[0]) if found else None
    delays = tuple((each.rank, each.delay) for each in late)
    step = alignment.step(found[0].rank, found[0].index) if found else 0
    first = [each._replace(end=ends.get(each.rank)) for each in [*distinct.values()][:MAX_EXPLANATIONS]]
    return Hang(tuple(first), state.waits, state.missing, delays, wrong, step)


def _faults(
    state: _State, alignment: Alignment, programs: Mapping[int, BesideProgram],
    steps: Mapping[int, Sequence[RecordedCall]],
) -> list[HangCause]:  # fmt: skip
    """Return the faults of ranks by the strongest evidence that there is, the most probable first."""
    following = {
        rank: alignment.following(rank) or beside.following or alignment.repeated(rank)
        for rank, beside in programs.items()
    }
    edits = alignment.edits()
    if all(edit.certain < 1 for edit in edits):
        own = _alone([each.edits for each in programs.values()], state)
        if {each.rank for each in own} != {edit.rank for edit in edits}:
            edits = own or edits  # a program does not have the sizes and groups that ranks compare with each other
    if not state.is_stuck:
        edits = [edit for edit in edits if edit.fault not in COUNTED or state.has_lost_others(edit)]
    edits.sort(key=lambda edit: (-edit.certain, _created(edit), edit.rank))
    mismatches = state.mismatches(alignment)
    is_less_certain = edits and mismatches and edits[0].certain < min(1, mismatches[0].certain)
    if is_less_certain and edits[0].rank != mismatches[0].rank:  # an edit of the same rank is earlier
        edits = mismatches
    unlike = [edit for edit in edits if state.is_of_own_program(edit)]
    found = [edit for edit in edits if edit not in unlike] or mismatches
    if not found:
        progress = None if state.has_messages else message_progress([*state.records.values()], steps)
        found = [HangCause(rank, "left out", following.get(rank)) for rank in progress.left_out()] if progress else []
        found = found or state.stopped(following, progress) or unlike
    if state.is_stuck and (not found or found[0].fault == LOST):
        found = alignment.strangest(state.pending, NEAR if found else WINDOW) + found
    elif state.is_stuck and not state.is_sure and found[0].fault == STOPPED:
        found = [each for each in alignment.strangest(state.pending, 1) if each.fault in UNLIKE_BEFORE] + found
    return found


def _with_deaths(found: list[HangCause], ends: Mapping[int, RankEnd], alignment: Alignment) -> list[HangCause]:
    """Return the faults of ranks with those that have died: these come first, unless calls differ for certain before,
    or the end of a rank can be an effect of other calls."""
    if found and found[0].fault == LOST:
        first = {rank for rank, end in ends.items() if end.is_first}
        found = sorted(found, key=lambda each: each.fault != LOST or each.rank not in first)
    causes = [(-end.certain, not end.is_first, end.moment, rank) for rank, end in ends.items() if end.certain]
    stops = {each.rank: each for each in reversed(found) if each.fault in OUTSIDE}
    died: list[HangCause] = []
    for *_, rank in sorted(causes):
        call = stops[rank].call if rank in stops else alignment.following(rank)
        died.append(HangCause(rank, DIED, call, certain=ends[rank].certain))
    if not died:
        return found
    moment = ends[died[0].rank].moment if died[0].certain >= 1 else 0

    def is_before(cause: HangCause) -> bool:
        is_certain = cause.certain >= 1 and (not moment or _created(cause) < moment)
        return cause.fault not in OUTSIDE and (is_certain or died[0].certain < 1)

    before = [each for each in found if is_before(each)]
    dead = {each.rank for each in died}
    rest = [each for each in found if each not in before and (each.rank not in dead or each.fault not in OUTSIDE)]
    return before + died + rest


def with_all_calls(records: Sequence[Record], found: Hang) -> list[Record]:
    """Return the records with all calls of the ranks in the explanations, and of some with equal programs, if only the
    last ones were read: a fault may be older than these. Raise MspcError if a file cannot be read again."""
    if not any(record.dropped for record in records):
        return [*records]
    named = {each.rank for each in found.explanations}
    for cluster in Alignment(records).clusters:
        if not named.isdisjoint(cluster):
            named |= {*cluster[:FEW_OTHERS], *cluster[-FEW_OTHERS:]}
    read: list[Record] = []
    for record in records:
        again = read_record_file(record.path) if record.rank in named and record.dropped else [record]
        whole = next((each for each in again if each.rank == record.rank), record)
        read.append(whole._replace(end=record.end))
    return read


def _alone(edits: Sequence[Sequence[HangCause]], state: _State) -> list[HangCause]:
    """Return the first edit of each rank that no other rank has, and the rank has once: a program makes some calls in a
    few of its steps only, and other members of a group make them, too."""
    counts = Counter((each.fault, each.call and each.call.place) for found in edits for each in found)

    def is_alone(edit: HangCause) -> bool:
        is_usual = edit.fault == "added" and state.is_shared(edit.call)
        return counts[edit.fault, edit.call and edit.call.place] == 1 and not is_usual

    alone = [[*filter(is_alone, found)] for found in edits]
    return [found[0] for found in alone if found]


def _created(edit: HangCause) -> int:
    return edit.call.created if edit.call is not None else 0


class _State:
    """Where the ranks of a job are: members of groups, the last number of each rank in each, and who waits for whom.

    is_in_step: by their programs, or their own earlier steps, all ranks are inside of a step.
    """

    def __init__(self, records: Sequence[Record], world: int, is_in_step: bool) -> None:
        self.records = {record.rank: record for record in records}
        self._is_in_step = is_in_step
        world = world_of(records, world)
        self.members = _members(records, world)
        self.missing = tuple(sorted(set(range(world)) - self.records.keys()))
        self.has_messages = any(call.is_message for record in records for call in record.calls)
        self._has_states = any(call.is_over for record in records for call in record.calls)
        self._passed: set[tuple[str, int]] = set()
        first = {record.rank: _first_open(record) if self._has_states else None for record in records}
        self.reached = {
            (name, each.rank): number
            for each in records for name, number in _begun(each.calls, first[each.rank]).items()
        }  # fmt: skip
        self.furthest: dict[str, int] = {}
        for (name, _), number in self.reached.items():
            self.furthest[name] = max(self.furthest.get(name, 0), number)
        wanted = {(name, number) for (name, _), number in self.reached.items()}
        wanted |= {(call.group, call.number) for call in first.values() if call is not None}
        self.calls: dict[tuple[str, int], dict[int, RecordedCall]] = defaultdict(dict)
        for record in records:
            stack = record.end.stack if record.end is not None else ()
            for call in record.calls:
                if not call.is_message and (call.group, call.number) in wanted:
                    self.calls[call.group, call.number][record.rank] = call
                    is_passed = call is not record.calls[-1] or (stack and call.place not in stack)  # raised elsewhere
                    if is_passed and not self._has_states:
                        self._passed.add((call.group, call.number))
        self._complete: dict[tuple[str, int], bool] = {}
        self.pending = {record.rank: first[record.rank] or self._last_open(record) for record in records}
        self.meetings = self._meetings()
        self._awaited: dict[tuple[str, int], tuple[int, ...]] = {}
        found = [] if self._has_ended() else [self._wait(record) for record in records]
        self.waits = tuple(each for each in found if each is not None)
        self.meetings |= self._crossed()

    @property
    def is_sure(self) -> bool:
        """Whether it is known who waits: ranks of gloo may wait for a message."""
        return self.has_messages or self._has_states

    @property
    def is_stuck(self) -> bool:
        """Whether a rank waits."""
        return bool(self.waits or self.meetings) or (any(self.pending.values()) and not self._has_ended())

    def _has_ended(self) -> bool:
        """Return whether all ranks with a record are at the end of one call, outside of a step: nothing says
        that the job hangs, even if ranks have no record."""
        if self._is_in_step:
            return False
        last = [record.calls[-1] for record in self.records.values() if record.calls]
        is_retired = 2 * sum(call.is_retired for call in last) > len(last)  # a record can be older than its last end
        return len({(call.group, call.number) for call in last}) == 1 and is_retired

    def _last_open(self, record: Record) -> RecordedCall | None:
        """Return the last call of a rank whose record has no states, if it is not over."""
        if not record.calls or self._has_states:
            return None
        last = record.calls[-1]
        if last.is_message or not last.group:
            return last if last.kind.startswith("recv") else None
        return None if self._is_complete(last) else last

    def _meetings(self) -> dict[str, dict[int, RecordedCall]]:
        """Return the first call of each group, of those in which ranks are, in which its members disagree."""
        open_calls = {(call.group, call.number) for call in self.pending.values() if call is not None}
        found: dict[str, dict[int, RecordedCall]] = {}
        for (group, number), here in sorted(self.calls.items()):
            is_last = (group, number) in open_calls or number == self.furthest.get(group)
            if is_last and group not in found and len({_signature(call) for call in here.values()}) > 1:
                found[group] = here
        return found

    def _crossed(self) -> dict[str, dict[int, RecordedCall]]:
        """Return, for two groups whose members wait for each other, the calls in which they do."""
        at: dict[tuple[str, int], dict[int, RecordedCall]] = defaultdict(dict)
        place: dict[int, tuple[str, int]] = {}
        for wait in self.waits:
            if not wait.call.is_message:
                place[wait.rank] = wait.call.group, wait.call.number
                at[place[wait.rank]][wait.rank] = wait.call
        found: dict[str, dict[int, RecordedCall]] = {}
        for key, here in at.items():
            (other, *others) = {place.get(rank) for rank in self._awaited[key] if rank in self.records} or (None,)
            if not others and other is not None and not here.keys().isdisjoint(self._awaited[other]):
                calls = here | at[other]
                if len({(call.kind, call.place) for call in calls.values()}) > 1:  # ranks of one group have no choice
                    both = {*self.members[key[0]]} & {*self.members[other[0]]}
                    calls = {rank: call for rank, call in calls.items() if rank in both}
                found[" and ".join(sorted((key[0], other[0])))] = calls
        return found

    def _is_complete(self, call: RecordedCall) -> bool:
        """Return whether all members of the group have come to a call with the same collective, or one has gone on."""
        key = call.group, call.number
        if key not in self._complete:
            here = self.calls[key]
            all_came = len(here) >= len(self.members[call.group]) and len({_signature(c) for c in here.values()}) == 1
            gone_on = self.furthest.get(call.group, 0) > call.number or key in self._passed
            self._complete[key] = gone_on or all_came or self._is_past(call)
        return self._complete[key]

    def _is_past(self, call: RecordedCall) -> bool:
        """Return whether members of a group without a record have come to its last call: other ranks with this call in
        a group of their own have met them later."""
        here, members = self.calls[call.group, call.number], self.members[call.group]
        away = {*members} - here.keys()
        if self._has_states or not away or not away <= {*self.missing} or len(here) > 1:
            return False  # several ranks that have come no further wait for the one without a record
        own = call.kind, call.stack, call.number
        for record in self.records.values():
            passed = record.calls[:-1]
            same = (i for i, each in enumerate(passed) if (each.kind, each.stack, each.number) == own)
            at = next((i for i in same if passed[i].group != call.group), len(passed))
            if away <= {rank for each in passed[at + 1 :] if each.group for rank in self.members[each.group]}:
                return True
        return False

    def is_shared(self, call: RecordedCall | None) -> bool:
        """Return whether another member of a call's group has issued the same one."""
        members = self.members.get(call.group, ()) if call is not None else ()
        others = [self.records[rank] for rank in members if rank in self.records]
        return call is not None and sharing(call, others) > 0

    def _wait(self, record: Record) -> BlockedRank | None:
        call = self.pending[record.rank]
        if call is None or not call.group:
            return None
        behind = self._behind(call)
        return BlockedRank(record.rank, call, behind, call.created) if behind else None

    def _behind(self, call: RecordedCall) -> tuple[int, ...]:
        group = self.members.get(call.group, ())
        if call.is_message:
            other, _ = partner(call.kind)
            return (group[other],) if 0 <= other < len(group) else ()
        key = call.group, call.number
        if key not in self._awaited:
            known = [other for other in group if other in self.records]
            behind = [other for other in known if self.reached.get((call.group, other), 0) < call.number]
            if self._has_states or self.furthest[call.group] <= call.number:
                behind += [other for other in group if other not in self.records]
            self._awaited[key] = tuple(sorted(behind))
        return self._awaited[key]

    def has_lost_others(self, edit: HangCause) -> bool:
        """Return whether no member of the group of a certain difference has a record, which would wait for it."""
        others = {*self.members.get(self._own_group(edit), ())} - {edit.rank}
        return edit.certain >= 1 and bool(others) and others <= {*self.missing}

    def is_of_own_program(self, edit: HangCause) -> bool:
        """Return whether a difference can be one of programs: of a call from a line that the rank never has, or no
        other rank, and no other member of the rank's smallest group has a record."""
        place = edit.call.place if edit.call else ""
        lines = {rank for rank, record in self.records.items() if any(call.place == place for call in record.calls)}
        is_left_out = edit.fault == "left out" and edit.rank not in lines
        if not is_left_out and (edit.fault != "added" or len(lines) > 1):
            return False
        groups = {call.group for call in self.records[edit.rank].calls if call.group and not call.is_message}
        smallest = min((self.members[group] for group in sorted(groups)), key=len, default=())
        return {*smallest} - {edit.rank} <= {*self.missing}

    def _own_group(self, cause: HangCause) -> str:
        """Return the group of a fault's call on its rank: that of the last such call before it."""
        record, fault = self.records[cause.rank], cause.expected or cause.call
        before = record.calls[: max(cause.index - record.dropped, 0)]
        own = [call.group for call in before if fault and (call.kind, call.stack) == (fault.kind, fault.stack)]
        return own[-1] if own else fault.group if fault else ""

    def mismatches(self, alignment: Alignment) -> list[HangCause]:
        """Return the ranks that are in another collective than most members of a group in one call of it; of two
        members the one that fewer ranks agree with."""
        found: list[tuple[float, tuple[int, int], HangCause]] = []
        for here in self.meetings.values():
            signatures = {rank: (_signature(call), call.group) for rank, call in here.items()}
            (usual, most), (_, second) = Counter(signatures.values()).most_common(2)
            for rank, call in sorted(here.items()):
                if signatures[rank] != usual or most == second:
                    other = next(here[each] for each in here if signatures[each] != signatures[rank])
                    record = self.records[rank]
                    at = next(i for i, each in enumerate(record.calls) if each is call)
                    fault, shown = _mismatch(call, other, record.calls[:at])
                    certain = (most if most > second else 1) / len(here)
                    index = record.dropped + at
                    support = alignment.agreement(rank, index) if most == second else (0, 0)
                    found.append((-certain, support, HangCause(rank, fault, shown, other, certain, index)))
        best = {cause.rank: certain for certain, _, cause in sorted(found, key=lambda item: -item[0])}

        def order(item: tuple[float, tuple[int, int], HangCause]) -> tuple[float, tuple[int, int], bool, int]:
            # A call in another group is the cause of the other mismatches of its rank.
            return best[item[2].rank], item[1], item[2].fault != "another group", _created(item[2])

        return [cause for _, _, cause in sorted(found, key=order)]

    def stopped(
        self, following: Mapping[int, RecordedCall | None], progress: MessageProgress | None
    ) -> list[HangCause]:
        """Return the ranks that others wait for, and that wait for none. progress: tells whether they wait for
        messages."""
        blocked = {wait.rank for wait in self.waits}
        behinds = Counter(wait.behind for wait in self.waits)
        dependents: Counter[int] = Counter()
        for behind, count in behinds.items():
            dependents.update(dict.fromkeys(behind, count))

        def order(wait: BlockedRank) -> tuple[int, int, int]:
            # A rank that others wait for waits in an earlier call of the program than these.
            return -dependents[wait.rank], wait.since, wait.rank

        first: dict[tuple[int, ...], BlockedRank] = {}
        for wait in sorted(self.waits, key=order):
            first.setdefault(wait.behind, wait)
        weights: dict[int, float] = defaultdict(float)
        awaited: dict[int, BlockedRank] = {}
        for behind, count in behinds.items():
            for rank in behind:
                if rank not in blocked:
                    weights[rank] += count / len(behind)
                    awaited[rank] = min(awaited.get(rank, first[behind]), first[behind], key=order)
        if not weights:  # others may wait in groups whose members are unknown
            calls = [*filter(None, self.pending.values())]
            lost = self.missing if calls and not self._has_ended() else ()
            return [HangCause(rank, LOST, calls[0], certain=1 / len(lost)) for rank in lost]
        doubled = self._doubled()
        if doubled and len(blocked) == 1 < len(weights) and not self.is_sure and self._is_early(doubled[0].rank):
            return doubled
        known = [rank for rank in weights if rank in self.records and not self._is_leaving(rank)]
        named = known if known and self.is_sure else [*weights]
        if progress is not None:
            free = self.records.keys() - blocked
            for rank in [*named]:  # the rank of its message can be the one that has stopped
                if (other := progress.awaited(rank)) in free - weights.keys():
                    weights[other], awaited[other] = weights[rank], awaited[rank]
                    named.append(other)
            explaining = [rank for rank in named if progress.explains(rank, free)]
            if not explaining and doubled:
                return doubled
            named = explaining or named

        def likely(rank: int) -> tuple[bool, bool, int, float, bool, int]:
            # One rank has stopped, most probably one without a record; others that are awaited wait for messages.
            known, is_alone, since = rank in self.records, (rank,) in behinds, awaited[rank].since
            return not is_alone, known and (is_alone or progress is not None), since, -weights[rank], not known, rank

        named.sort(key=likely)
        if not self._has_states and named[0] not in self.records:
            # A rank may have met ranks without a record in its last call, and have stopped after it.
            alone = Counter((wait.call.group, wait.call.number) for wait in self.waits)
            for wait in self.waits:
                is_alone = alone[wait.call.group, wait.call.number] == 1 and wait.behind == (named[0],)
                if is_alone and wait.rank not in weights:
                    weights[wait.rank], awaited[wait.rank] = max(dependents[wait.rank], 1), wait
                    named.insert(1, wait.rank)
        total = sum(weights[rank] for rank in named)
        return [
            HangCause(rank, STOPPED if rank in self.records else LOST, following.get(rank) or awaited[rank].call,
                      certain=weights[rank] / total)
            for rank in named[:MAX_EXPLANATIONS]
        ]  # fmt: skip

    def _is_leaving(self, rank: int) -> bool:
        """Return whether a rank's record is of the moment at which its last call ended; it may wait in the next one."""
        call = self.pending[rank]
        return self._has_states and call is not None and not call.is_message and self._is_complete(call)

    def _doubled(self) -> list[HangCause]:
        """Return the ranks that wait in a call which repeats the one before it."""
        pairs = ((wait, [c for c in self.records[wait.rank].calls if c.created < wait.since]) for wait in self.waits)
        return [
            HangCause(wait.rank, "doubled", wait.call) for wait, before in pairs
            if before and is_repeated(wait.call, before[-1]) and wait.call.place == before[-1].place
        ]  # fmt: skip

    def _is_early(self, rank: int) -> bool:
        """Return whether a rank has issued its last call sooner than ever after another one from the same line: it has
        done nothing between both."""
        calls, arrivals = self.records[rank].calls, Arrivals(self.records, {})
        *gaps, last = [
            call.created - arrivals.ready(before) for before, call in pairwise(calls)
            if (before.kind, before.stack) == (call.kind, call.stack) == (calls[-1].kind, calls[-1].stack)
        ]  # fmt: skip
        return not gaps or 2 * last < min(gaps)

    def met_another(self, cause: HangCause) -> RecordedCall | None:
        """Return the first call after a fault that is over, and can have met another collective of its group."""
        record = self.records.get(cause.rank)
        if record is None or cause.index < 0 or cause.fault not in ("left out", "doubled", "added", "swapped"):
            return None
        at, fault = max(cause.index - record.dropped, 0), cause.expected or cause.call
        if fault is None:
            return None
        group = self._own_group(cause)
        if cause.fault == "left out":  # of equal calls in a row any can be the one
            while at and is_repeated(record.calls[at - 1], fault._replace(group=record.calls[at - 1].group)):
                at -= 1
        for call in record.calls[at:]:
            if call.group == group and not call.is_message:
                gone_on = self.furthest.get(call.group, 0) > call.number or self._is_complete(call)
                return call if gone_on else None
        return None


def _begun(calls: Sequence[RecordedCall], pending: RecordedCall | None) -> dict[str, int]:
    """Return the number of the last collective of each group up to the one in which a rank waits; later ones are
    issued."""
    if pending is None:
        return last_numbers(calls)
    at = next(i for i, call in enumerate(calls) if call is pending)
    begun = last_numbers(calls[: at + 1])
    for call in calls[at + 1 :]:
        if not call.is_message and call.group not in begun:
            begun[call.group] = call.number - 1
    return begun


def _first_open(record: Record) -> RecordedCall | None:
    """Return the first call of a rank after those that are over, if the record has states."""
    after = max((i for i, call in enumerate(record.calls) if call.is_over), default=-1) + 1
    return record.calls[after] if after < len(record.calls) else None


def _mismatch(call: RecordedCall, other: RecordedCall, earlier: Sequence[RecordedCall]) -> tuple[str, RecordedCall]:
    """Return the fault of a rank that is in a call where others are in another one, and the call of the fault."""
    usual = {each.group for each in earlier if (each.kind, each.stack) == (call.kind, call.stack)}
    if usual and call.group not in usual:
        return "another group", call
    since = [*takewhile(lambda each: each.group != call.group, reversed(earlier))]
    for each in since:
        if (_signature(each), each.place, each.sizes) == (_signature(other), other.place, other.sizes):
            return "another group", each
    fault = difference(call, other)
    if fault == "another collective" and len(since) < len(earlier):
        before = earlier[-1 - len(since)]
        is_doubled = is_repeated(call, before) and call.place == before.place
        return ("doubled", call) if is_doubled else ("left out", other)
    return fault, call


def _signature(call: RecordedCall) -> tuple[object, ...]:
    even = "reduce" in call.kind or ("gather" in call.kind and call.kind != "gather")
    return (call.kind, call.dtypes, call.sizes if even else ())


def _members(records: Sequence[Record], world: int) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group: as recorded, or else those that have calls in it, and all for calls of all. Ranks
    without a record are in the group that has as many callers less than others at a line, if it is the only one."""
    found: dict[str, tuple[int, ...]] = {}
    callers: dict[str, set[int]] = defaultdict(set)
    lines: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for record in records:
        found.update(record.members)
        for call in record.calls:
            if call.group:
                callers[call.group].add(record.rank)
                if not call.is_message:
                    lines[call.kind, call.stack].add(call.group)
    missing = set(range(world)) - {record.rank for record in records}
    for groups in lines.values():
        usual = max(len(callers[name] - missing) for name in groups)
        fewer = [name for name in groups if len(callers[name] - missing) < usual]
        if len(fewer) == 1 and usual - len(callers[fewer[0]] - missing) == len(missing):
            callers[fewer[0]] |= missing
    for name, ranks in callers.items():
        if 1 < len(records) == len(ranks):  # the group of all ranks
            callers[name] = ranks | missing
    return {name: found.get(name) or tuple(sorted(callers[name])) for name in found.keys() | callers.keys()}
