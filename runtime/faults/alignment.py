"""Alignment of the calls of ranks that run one program, and of a rank with its program.

Calls are compared from the oldest that both have on, by their index since the start of the job. The first difference is
explained by the edits of least cost that make the calls after it equal: a call that is left out, doubled, swapped with
the next, or that has another size, type or group. Calls after the end of the shorter sequence cost nothing. If too few
ranks run a program, the rank whose call follows the calls before it most seldom elsewhere is the one that differs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mspc.runtime.faults.recorded_calls import RankEnd, Record, RecordedCall

Token = int
WINDOW = 48
"""Calls after the first difference that are aligned."""
GAP, SWAP, KIND = 2.0, 2.0, 5.0
"""Costs of a call that is left out or too many, of two that are swapped, and of another kind or line at one place."""
SIZE, GROUP = 1.0, 1.5
"""Costs of another size or type, and of another group, of a call of the same kind and line."""
SUPPORTED = 0.75
"""How certain it is that of two ranks the one differs whose calls are elsewhere more seldom."""
MIN_OVERLAP, LONG_OVERLAP, MAX_HISTORIES, MAX_EDITS = 4, 16, 32, 64
SEVERAL = 3
"""Differences from which on a rank may have a program of its own."""
FAMILIES = (("reduce", "reduce"), ("scatter", "scatter"), ("gather", "gather"), ("all_?to_?all", "exchange"))
"""Patterns of kinds, and their names. Gloo records a reduce_scatter as an all_reduce."""


class HangCause(NamedTuple):
    """Why a job hangs, as far as records tell.

    rank: the culprit. fault: as "left out". call: its call, or for one that is left out that of another rank. certain:
    how much of the evidence agrees, from 0 to 1. index: of the call since the start of the job, -1 if it is unknown.
    end: of the rank, if it is known.
    """

    rank: int
    fault: str
    call: RecordedCall | None
    expected: RecordedCall | None = None
    certain: float = 1.0
    index: int = -1
    end: RankEnd | None = None


class Tokens:
    """Numbers for calls that are equal on ranks with the same program.

    Ranks have other groups at one place of the program: a group counts only if it is not the one that the rank has at
    that place elsewhere. A place with several groups numbers these as its rank does.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, Token] = {}

    def of(self, record: Record) -> tuple[Token, ...]:
        usual: dict[Any, Counter[tuple[int, str]]] = defaultdict(Counter)
        for call in record.calls:
            usual[call.kind, call.stack][call.role, call.group] += 1
        places = {place: _groups(counts) for place, counts in usual.items()}
        numbers = self._numbers
        return tuple([
            numbers.setdefault(
                (c.kind, c.sizes, c.dtypes, c.stack, places[c.kind, c.stack][c.role, c.group]), len(numbers)
            )
            for c in record.calls
        ])  # fmt: skip


def _groups(counts: Counter[tuple[int, str]]) -> dict[tuple[int, str], int]:
    """Return a number for each group of a place: 0 for the usual ones in the order of their roles, negative for rare
    ones."""
    most = max(counts.values())
    usual = sorted(group for group, count in counts.items() if most == 1 or 1 < count >= most / 2)
    return {group: usual.index(group) if group in usual else -1 for group in counts}


class _Program(NamedTuple):
    """Calls that ranks agree in: index of the first one, calls, and ranks."""

    start: int
    tokens: Sequence[Token]
    ranks: list[int]

    def shared(self, start: int, tokens: Sequence[Token]) -> tuple[Sequence[Token], Sequence[Token]]:
        """Return the calls of this program and of a rank at indices that both have."""
        first, last = max(self.start, start), min(self.start + len(self.tokens), start + len(tokens))
        return self.tokens[first - self.start : last - self.start], tokens[first - start : last - start]

    def joined(self, other: _Program) -> _Program:
        """Return the calls and ranks of both, which agree in the calls that both have."""
        one, two = sorted((self, other), key=lambda each: (not each.tokens, each.start))
        rest = two.tokens[max(one.start + len(one.tokens) - two.start, 0) :]
        return _Program(one.start, (*one.tokens, *rest), [*self.ranks, *other.ranks])


def clusters(records: Sequence[Record], sequences: Mapping[int, Sequence[Token]]) -> list[list[int]]:
    """Return lists of ranks that seem to run the same program. Ranks agree in all calls that both have, but one rank
    alone may differ from a program in calls that it does not repeat."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for record in records:
        alike[record.dropped, sequences[record.rank]].append(record.rank)
    found: list[_Program] = []
    for (start, tokens), ranks in sorted(alike.items(), key=lambda item: (-len(item[1]), item[1])):
        single = _Program(start, tokens, ranks)
        at = next((i for i, program in enumerate(found) if _is_equal(program, single)), len(found))
        found[at:] = [found[at].joined(single) if at < len(found) else single, *found[at + 1 :]]
    merged: list[_Program] = []
    for program in sorted(found, key=lambda each: (-len(each.ranks), each.ranks)):
        near = [(_agreement(each, program), each) for each in merged] if len(program.ranks) == 1 else []
        best, nearest = max(near, key=lambda each: each[0], default=(0, program))
        if best:
            nearest.ranks.extend(program.ranks)
        else:
            merged.append(program)
    return [sorted(program.ranks) for program in merged]


def _is_equal(program: _Program, other: _Program) -> bool:
    """Return whether two programs agree in all calls that both have. A few calls can be of a loop that several programs
    have: then each has all calls that the other one repeats, too."""
    its, mine = program.shared(other.start, other.tokens)
    if its != mine or len(its) < min(MIN_OVERLAP, len(program.tokens), len(other.tokens)):
        return False
    repeated, known = _several(program.tokens), {*other.tokens}
    return len(its) >= LONG_OVERLAP or (repeated <= known and _several(other.tokens) <= {*program.tokens})


def _agreement(program: _Program, single: _Program) -> int:
    """Return how many calls in a row from the first that both have on are equal; 0 if one repeats a call that the other
    never has, or half of the calls differ."""
    its, mine = program.shared(single.start, single.tokens)
    if len(its) < min(MIN_OVERLAP, len(single.tokens), len(program.tokens)):
        return 0
    is_own = _several(its) <= {*single.tokens} and _several(mine) <= {*program.tokens}
    if not is_own or 2 * sum((Counter(its) & Counter(mine)).values()) < len(its):
        return 0
    return next((i for i, (a, b) in enumerate(zip(its, mine, strict=True)) if a != b), len(its))


def _several(tokens: Sequence[Token]) -> set[Token]:
    return {token for token, count in Counter(tokens).items() if count > 1}


class Alignment:
    """The calls of all ranks as tokens, in clusters of ranks with the same program."""

    def __init__(self, records: Sequence[Record], steps: Mapping[int, Sequence[RecordedCall]] | None = None) -> None:
        """steps: the calls of a step of each rank, if they are known: ranks with others have other programs."""
        tokens = Tokens()
        self.records = {record.rank: record for record in records}
        self.sequences = {record.rank: tokens.of(record) for record in records}
        programs: dict[Any, list[Record]] = defaultdict(list)
        for record in records:
            programs[tuple(map(family, (steps or {}).get(record.rank, ())))].append(record)
        self.clusters = [ranks for each in programs.values() for ranks in clusters(each, self.sequences)]
        self._furthest: dict[int, Record] = {}
        self._differences: dict[int, int] = {}
        for ranks in self.clusters:
            furthest = max((self.records[rank] for rank in ranks), key=lambda each: each.dropped + len(each.calls))
            self._furthest |= dict.fromkeys(ranks, furthest)

    def edits(self) -> list[HangCause]:
        """Return the first difference of each rank from most others with its program. A rank with several differences
        may have a program of its own, and counts only if there are no others."""
        found = [edit for ranks in self.clusters if len(ranks) > 1 for edit in self._edits(ranks)]
        return [edit for edit in found if self._differences[edit.rank] < SEVERAL] or found

    def _edits(self, ranks: Sequence[int]) -> list[HangCause]:
        model = self._model(ranks)
        found: list[HangCause] = []
        for rank in ranks:
            edit = self._edit(rank, model) if rank != model else None
            if edit is None:
                continue
            here = [self._token(each, edit.index) for each in ranks]
            votes = here.count(self._token(model, edit.index)) - here.count(self._token(rank, edit.index))
            certain = 1.0 if votes else SUPPORTED
            votes = votes or self._doubt(rank, model, edit.index, ranks)
            turned = self._edit(model, rank)
            if votes > 0 or turned is None:
                found.append(edit._replace(certain=certain))
            elif votes < 0:
                found.append(turned._replace(certain=certain))
            else:
                found += [each._replace(certain=0.5) for each in (edit, turned)]
        return found

    def _doubt(self, rank: int, model: int, index: int, ranks: Sequence[int]) -> int:
        """Return how much better the call of a second rank is known than that of the first, at an index: from the calls
        of ranks with their program before it, from other members of its group, or from all ranks."""
        own, its = self.support(rank, index, ranks), self.support(model, index, ranks)
        doubt = its - own if max(own, its) > MIN_OVERLAP else 0
        if not own or not its:  # the call is the first of its kind
            doubt = self._sharing(model, index, ranks) - self._sharing(rank, index, ranks) or doubt
        return doubt or self.support(model, index) - self.support(rank, index)

    def _sharing(self, rank: int, index: int, ranks: Sequence[int]) -> int:
        """Return how many ranks with other programs have issued a collective of a rank, in its group."""
        at = index - self.records[rank].dropped
        if not 0 <= at < len(self.sequences[rank]):
            return 0
        return sharing(self.records[rank].calls[at], [r for each, r in self.records.items() if each not in ranks])

    def following(self, rank: int) -> RecordedCall | None:
        """Return the call after the last one of a rank, from the rank with its program that has come furthest."""
        if rank not in self.records:
            return None
        record, furthest = self.records[rank], self._furthest[rank]
        at = record.dropped + len(record.calls) - furthest.dropped
        return furthest.calls[at] if 0 <= at < len(furthest.calls) else None

    def repeated(self, rank: int) -> RecordedCall | None:
        """Return the call after the last one of a rank, from its own earlier steps."""
        tokens = self.sequences[rank]
        length, end = longest_run(tokens, len(tokens) - 1, tokens[:-1]) if len(tokens) > 1 else (0, 0)
        return self.records[rank].calls[end + 1] if length >= MIN_OVERLAP else None

    def step(self, rank: int, index: int) -> int:
        """Return the step of a call, from 1 on: its distance from the first step, which repeats; 0 if it is unknown."""
        first, period = self._steps(rank, index)
        return (index - first) // period + 1 if period else 0

    def _steps(self, rank: int, index: int) -> tuple[int, int]:
        """Return the index of a rank's first call that repeats, and after how many calls it does, by those before
        `index`; (0, 0) if it is unknown."""
        record, tokens = self.records.get(rank), self.sequences.get(rank, ())
        if record is None or record.dropped or not 1 < index <= len(tokens):
            return 0, 0
        length, end = longest_run(tokens, index - 1, tokens[: index - 1])
        period = index - 1 - end
        if length < MIN_OVERLAP or end < 0:
            return 0, 0
        return next((i for i in range(index - period) if tokens[i] == tokens[i + period]), index), period

    def is_in_step(self) -> bool:
        """Return whether each rank has earlier gone on after its last call, and never with the first call of a step. If
        the first step is unknown, a call from the line of the one before it begins no step, nor does one from a later
        line than another call that repeats."""
        for rank, tokens in self.sequences.items():
            first, period = self._steps(rank, len(tokens))
            calls, several = self.records[rank].calls, _several(tokens)
            after = [i + 1 for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]
            if period or len(after) < 2:
                is_over = not period or any(tokens[i] == tokens[first] for i in after)
            else:
                stacks = {call.stack for call, token in zip(calls, tokens, strict=True) if token in several}
                following = {calls[i].stack for i in after} - ({calls[-1].stack} if len(stacks) > 1 else set())
                is_over = not all(any(_is_later(stack, each) for each in stacks) for stack in following)
            if is_over:
                return False
        return bool(self.sequences)

    def strangest(self, pending: Mapping[int, RecordedCall | None], near: int) -> list[HangCause]:
        """Return the call of each rank that follows the calls before it most seldom elsewhere, the strangest first: a
        call from a known line after calls that are in the records many times in their order.

        pending: the calls in which ranks wait. near: most calls between these and the strange ones.
        """
        found: list[tuple[int, HangCause]] = []
        waiting = [(rank, call) for rank, call in pending.items() if call is not None]
        for rank, call in waiting[:MAX_HISTORIES]:
            record, tokens = self.records[rank], self.sequences[rank]
            end = next(i for i, each in enumerate(record.calls) if each is call) + 1
            usual = [each for each in record.calls if (each.kind, each.stack) == (call.kind, call.stack)]
            odd = [
                (fault, next(each for each in usual if each[field] != call[field]))
                for fault, field in (("another group", 0), ("another size", 3))
                if len(usual) > MIN_OVERLAP and _is_odd([each[field] for each in usual], call[field])
            ]  # fmt: skip
            if odd:
                fault, other = odd[0]
                found.append((0, HangCause(rank, fault, call, other, 0.5, record.dropped + end - 1)))
                continue
            first = max(end - near, len(tokens) // 2, 1)
            runs = {i: self.support(rank, record.dropped + i) for i in range(first - 1, end)}
            lines = [each.place for each in record.calls]
            strange = [
                i for i in range(first, end)
                if runs[i] < MIN_OVERLAP and runs[i - 1] > 2 * MIN_OVERLAP and lines[:i].count(lines[i]) >= MIN_OVERLAP
            ]  # fmt: skip
            if strange:
                at = strange[0]
                length, before = longest_run(tokens, at - 1, tokens[: at - 1])
                earlier = record._replace(calls=record.calls[before:], dropped=0)
                now = record._replace(calls=record.calls[at - 1 :], dropped=0)
                for edit in edits_at_equal_indices(now, tokens[at - 1 :], earlier, tokens[before:]):
                    if length > MIN_OVERLAP:
                        found.append((runs[at], edit._replace(certain=0.5, index=record.dropped + at)))
        return [cause for _, cause in sorted(found, key=lambda item: item[0])]

    def _token(self, rank: int, index: int) -> Token | None:
        at = index - self.records[rank].dropped
        return self.sequences[rank][at] if 0 <= at < len(self.sequences[rank]) else None

    def _model(self, ranks: Sequence[int]) -> int:
        """Return the rank whose beginning most others share; of these the one with most calls."""
        sharing: dict[Any, list[int]] = defaultdict(list)
        shortest = min(len(self.sequences[rank]) + self.records[rank].dropped for rank in ranks)
        start = max(self.records[rank].dropped for rank in ranks)
        for rank in ranks:
            at = self.records[rank].dropped
            sharing[self.sequences[rank][start - at : max(shortest - at, 0)]].append(rank)
        most = max(sharing.values(), key=len)
        return max(most, key=lambda rank: len(self.sequences[rank]))

    def _edit(self, rank: int, model: int) -> HangCause | None:
        record, other = self.records[rank], self.records[model]
        found = edits_at_equal_indices(record, self.sequences[rank], other, self.sequences[model], SEVERAL)
        self._differences[rank] = len(found)
        return found[0] if found else None

    def agreement(self, rank: int, index: int) -> tuple[int, int]:
        """Return how many ranks agree with the calls of a rank, and the support of one of its calls."""
        return next(len(ranks) for ranks in self.clusters if rank in ranks), self.support(rank, index)

    def support(self, rank: int, index: int, among: Sequence[int] = ()) -> int:
        """Return how many calls up to one are, in this order, elsewhere in the records: the longest such run. among:
        the ranks whose records count, all by default."""
        tokens = self.sequences[rank]
        at = index - self.records[rank].dropped
        if not 0 <= at < len(tokens):
            return 0
        others = ((r, self.sequences[r]) for r in among or self.sequences)
        histories = dict.fromkeys(history for r, history in others if r != rank and tokens[at] in history)
        best, _ = longest_run(tokens, at, tokens[:at])
        for history in [*histories][:MAX_HISTORIES]:
            best = max(best, longest_run(tokens, at, history)[0])
        return best


def sharing(call: RecordedCall, records: Sequence[Record]) -> int:
    """Return how many records have another call that is the same collective in the same group."""
    own = call.group, call.number, call.kind, call.place
    have = (any((c.group, c.number, c.kind, c.place) == own and c is not call for c in each.calls) for each in records)
    return 0 if call.is_message else sum(have)


def _is_odd(values: Sequence[Any], value: Any) -> bool:
    """Return whether a value occurs once among others that are all equal."""
    return values.count(value) == 1 and len({*values}) == 2


def _is_later(stack: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a call is from a later line of the same function: both stacks differ first in a line of a file."""
    differing = ((a, b) for a, b in zip(reversed(stack), reversed(other), strict=False) if a != b)
    (file, _, line), (its, _, before) = (place.rpartition(":") for place in next(differing, ("", "")))
    return bool(file) and file == its and int(line) > int(before)


def longest_run(tokens: Sequence[Token], at: int, history: Sequence[Token]) -> tuple[int, int]:
    """Return the most tokens up to `at`, and with it, that a history has in this order, and its last position there."""
    values = np.asarray(history)
    ends: npt.NDArray[np.intp] = np.flatnonzero(values == tokens[at])
    length, last = 0, -1
    while len(ends):
        length, last = length + 1, int(ends[-1])
        if length > at:
            break
        ends = ends[ends >= length]
        ends = ends[values[ends - length] == tokens[at - length]]
    return length, last


def edits_at_equal_indices(
    record: Record, tokens: Sequence[Token], model: Record, others: Sequence[Token], most: int = 1
) -> list[HangCause]:
    """Return the first calls of a rank that are not as the model's, with the edits of least cost."""
    start = max(record.dropped, model.dropped)
    return all_edits(record, tokens, model, others, start - record.dropped, start - model.dropped, most)[0]


CONSUMED = {"left out": (0, 1), "doubled": (1, 0), "added": (1, 0), "swapped": (2, 2), "doubled or left out": (0, 1)}
"""Calls of the rank and of the model that an edit takes; (1, 1) for one call in the place of another."""


def all_edits(
    record: Record, tokens: Sequence[Token], model: Record, others: Sequence[Token], first: int, second: int,
    most: int = MAX_EDITS,
) -> tuple[list[HangCause], int]:  # fmt: skip
    """Return the edits of least cost that turn the model's calls into the rank's, and the position in the model after
    the rank's last call. first, second: positions from which on both are compared."""
    found: list[HangCause] = []
    while len(found) < most:
        rest = zip(tokens[first:], others[second:], strict=False)
        at = next((i for i, (a, b) in enumerate(rest) if a != b), None)
        if at is None:
            break
        first, second = first + at, second + at
        own, expected = record.calls[first], model.calls[second]
        fault = _least_edit(
            record.calls[first : first + WINDOW], model.calls[second : second + WINDOW],
            tokens[first : first + WINDOW], others[second : second + WINDOW],
            record.calls[first - 1] if first else None,
        )  # fmt: skip
        call = expected if fault == "left out" else own
        found.append(HangCause(record.rank, fault, call, expected, index=record.dropped + first))
        one, other = CONSUMED.get(fault, (1, 1))
        first, second = first + one, second + other
    return found, second + len(tokens) - first


def _least_edit(
    mine: Sequence[RecordedCall], its: Sequence[RecordedCall], own: Sequence[Token], others: Sequence[Token],
    before: RecordedCall | None,
) -> str:  # fmt: skip
    """Return the first edit of those of least cost that turn the model's calls into the rank's; both differ at index
    0."""
    rest = _costs(mine, its, own, others)
    repeats = before is not None and is_repeated(mine[0], before)
    ways = {
        "left out": GAP + rest[0, 1],
        "doubled" if repeats else "added": GAP - 0.25 * repeats + rest[1, 0],
        difference(mine[0], its[0]): _cost(mine[0], its[0]) + rest[1, 1],
    }
    if len(mine) > 1 and len(its) > 1 and own[0] == others[1] and own[1] == others[0]:
        ways = {"swapped": SWAP + rest[2, 2]} | ways  # the first of equal ones: its message has both lines
    fault = min(ways, key=lambda each: ways[each])
    if fault in ("left out", "doubled") and repeats and abs(ways["left out"] - ways["doubled"]) <= 0.25:
        return "doubled or left out"  # no later call tells these two apart
    return fault


def _costs(
    mine: Sequence[RecordedCall], its: Sequence[RecordedCall], own: Sequence[Token], others: Sequence[Token]
) -> npt.NDArray[np.float64]:
    """Return the least cost of edits from a pair of positions on, [calls + 1, calls + 1]; the end of either is free."""
    costs = np.zeros((len(mine) + 1, len(its) + 1))
    known: dict[tuple[Token, Token], float] = {(token, token): 0.0 for token in own}
    for i in range(len(mine) - 1, -1, -1):
        for j in range(len(its) - 1, -1, -1):
            pair = own[i], others[j]
            if (step := known.get(pair)) is None:
                step = known[pair] = _cost(mine[i], its[j])
            costs[i, j] = min(step + costs[i + 1, j + 1], GAP + costs[i, j + 1], GAP + costs[i + 1, j])
    return costs


def _cost(own: RecordedCall, expected: RecordedCall) -> float:
    """Return the cost of one call in the place of another one."""
    if family(own) != family(expected) or (expected.sizes and own.kind != expected.kind):
        return KIND if own.kind != expected.kind or own.place != expected.place else GAP
    if own.sizes != expected.sizes or own.dtypes != expected.dtypes:
        return SIZE if expected.sizes else 0.0
    return GROUP


def difference(own: RecordedCall, expected: RecordedCall) -> str:
    """Return the fault of one call in the place of another one, which has no sizes if it is a program's."""
    if family(own) != family(expected) or not expected.sizes or own.kind != expected.kind:
        return "another collective"
    if own.sizes != expected.sizes:
        return "another size"
    return "another type" if own.dtypes != expected.dtypes else "another group"


def is_repeated(call: RecordedCall, before: RecordedCall) -> bool:
    return (call.kind, call.group, call.sizes, call.dtypes) == (before.kind, before.group, before.sizes, before.dtypes)


def family(call: RecordedCall) -> tuple[str, str]:
    """Return the kind and the line of a call as its program has them, too: names of a collective differ between
    libraries, and paths between machines."""
    return _family(call.kind, call.place)


@lru_cache(maxsize=4096)
def _family(kind: str, place: str) -> tuple[str, str]:
    name = next((name for pattern, name in FAMILIES if re.search(pattern, kind)), kind.partition(" ")[0])
    return name, place.rpartition("/")[2]


# Calls of a rank beside its program


MAX_BEFORE, MIN_RUN = 200, 3
"""Most calls before the first step, as broadcasts of parameters, and least calls of a program in a row."""


class BesideProgram(NamedTuple):
    """edits: the calls of a rank that are not as in its program. following: the call after its last one, or None.
    is_in_step: that is not the first one of a step."""

    edits: list[HangCause]
    following: RecordedCall | None = None
    is_in_step: bool = False


def beside_program(record: Record, step: Sequence[RecordedCall]) -> BesideProgram:
    """Compare the calls of a rank with its program, which repeats the calls of one step."""
    if not step or not record.calls:
        return BesideProgram([])
    if any(call.is_message for call in step) and not any(call.is_message for call in record.calls):
        step = [call for call in step if not call.is_message]  # gloo records no messages
    first, place = _in_program(record, step)
    model = tuple(step[(place + i) % len(step)] for i in range(len(record.calls) + WINDOW + MAX_EDITS))
    numbers: dict[Any, Token] = {}
    mine, its = ([numbers.setdefault(family(c), len(numbers)) for c in each] for each in (record.calls, model))
    edits, after = all_edits(record, mine, record._replace(calls=model), its, first, 0)
    begun, known = record.dropped + first + len(step), {*map(family, step)}
    edits = [
        edit for edit in edits  # other calls before the first step are no faults
        if edit.index >= begun or edit.call is None or family(edit.call) in known
    ]  # fmt: skip
    if after >= len(model):
        return BesideProgram(edits)
    return BesideProgram(edits, model[after], (place + after) % len(step) != 0)


def _in_program(record: Record, step: Sequence[RecordedCall]) -> tuple[int, int]:
    """Return the first call of a record that is in its program, and its place in the step; the pair from which on most
    calls are equal."""
    mine, its = [family(call) for call in record.calls], [family(call) for call in step]
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, each in enumerate(its):
        places[each].append(place)
    best = (0, 0, 0)
    for first, each in enumerate(mine[: MAX_BEFORE if not record.dropped else 1]):
        for place in places.get(each, ()):
            count = next((i for i, own in enumerate(mine[first:]) if own != its[(place + i) % len(its)]), len(mine))
            best = max(best, (count, -first, place), key=lambda found: found[:2])
        if best[0] >= MIN_RUN:
            break
    return -best[1], best[2]
