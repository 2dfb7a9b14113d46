"""Differences between two compiles, dumps or plans, as data.

Operators and collectives of the two are matched by phase, cells, instance name, source line and position among those
of their kind. Entries that are equal in all of these are matched first, so that only the effects of a change remain.
Gradients are matched by their parameters, independent of the buckets in which they are sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from mspc.commands.facts.compiled import CompileFacts, PipelineFacts
from mspc.commands.facts.graph import (
    EQUALS,
    CollectiveFact,
    GraphFacts,
    OperatorFact,
    ScopeTotals,
    SentTensor,
    cell_of,
)
from mspc.commands.report.tables import alike, group, time_text
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.program import PlanEntries


@dataclass(frozen=True)
class Difference:
    """An item that differs. name: of the item. cell: the cell that contains it. first, second: its text in each; None
    if only the other has it. why: the reasons that the texts give, the second's last."""

    name: str
    cell: str
    line: str
    first: str | None
    second: str | None
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class SentDifference(Difference):
    """A difference in the collectives of one tensor. operators: in each, "" if only the other has one. bytes: bytes of
    the tensor that a rank sends in each."""

    operators: tuple[str, ...] = ("", "")
    bytes: tuple[int, ...] = (0, 0)


OVER = " over "
"""Separator between the payload of a collective and its group."""
GRADIENT_OF = "gradient of "
"""Prefix of a parameter's name in the name of a collective that sends its gradient."""
MAX_FIGURES = ("weights", "states", "inputs", "constants", "step", "gradients", "activations", "temporary")
"""Figures of a rank's memory that are compared."""


@dataclass(frozen=True)
class Figure:
    """A number that differs between the two. unit: "bytes", "seconds" or "", a count."""

    name: str
    unit: str
    first: float
    second: float


@dataclass(frozen=True)
class ScopeDifference:
    """A cell for which the sums of a step differ."""

    cell: str
    first: ScopeTotals
    second: ScopeTotals


RankPair = tuple[tuple[int, ...], tuple[int, ...]]
"""Ranks of the first, and the ranks of the second with which they are compared."""


@dataclass
class RankSums:
    """Sums of a step that differ between ranks of the two."""

    ranks: RankPair
    scopes: list[ScopeDifference]
    figures: list[Figure]


@dataclass
class RankDifferences:
    """Differences of a class of equivalent ranks. Groups are those of the first rank. sums: one entry for all ranks
    with the same differences in their sums."""

    ranks: RankPair
    operators: list[Difference]
    collectives: list[SentDifference]
    sums: list[RankSums]


@dataclass
class Differences:
    """All differences. names: of the two. layouts: of the operands of operators. memory: recomputed cells, and
    parameters that are stored in another way. stages: of pipelines. tensors: inputs, parameters and outputs."""

    names: tuple[str, str]
    header: list[Difference] = field(default_factory=list[Difference])
    layouts: list[Difference] = field(default_factory=list[Difference])
    memory: list[Difference] = field(default_factory=list[Difference])
    stages: StageDifferences | None = None
    tensors: list[Difference] = field(default_factory=list[Difference])
    kinds: list[RankDifferences] = field(default_factory=list[RankDifferences])

    def __bool__(self) -> bool:
        return bool(self.header or self.layouts or self.memory or self.stages or self.tensors or self.kinds)


_Sent = tuple[CollectiveFact, SentTensor]
"""The part of a collective that concerns one tensor."""


class _Sources:
    """Sources of operands by the names that occur equally often in both; other names may denote different operators."""

    def __init__(self, first: CompileFacts, second: CompileFacts) -> None:
        ours, theirs = (
            Counter(source for kind in facts.kinds[:1] for fact in kind.operators for source in fact.sources)
            for facts in (first, second)
        )
        self._names = {name for name in ours if name in theirs}

    def swapped(self, ours: Sequence[str], theirs: Sequence[str]) -> bool:
        """Return whether an operand has another source. Only sources with names in both compiles are compared."""
        pairs = zip(ours, theirs, strict=False)
        return any(a != b and a in self._names and b in self._names for a, b in pairs)


def differences(first: CompileFacts, second: CompileFacts) -> Differences:
    """Return the differences of two compiles. Only facts that both have are compared."""
    foreign = first.foreign or second.foreign
    found = Differences((first.name, second.name))
    found.header = [
        Difference(name, "", "", str(one), str(other))
        for name, one, other in (("ranks", first.ranks, second.ranks), ("mode", first.mode, second.mode))
        if one and other and one != other
    ]
    found.layouts = list(_layouts(first, second))
    found.memory = memory_differences(first.plan, second.plan)
    stages, moved = stage_differences(first.pipeline, second.pipeline)
    found.stages = stages or None
    found.tensors = list(_tensors(first, second))
    kinds: dict[Hashable, RankDifferences] = {}
    known = _Sources(first, second)
    for one, other in _same_ranks(first.kinds, second.kinds):
        ranks = one.ranks, other.ranks
        operators = list(_operators(one, other, foreign, moved, known))
        sums = RankSums(ranks, list(_scopes(one, other, foreign)), list(_figures(one, other)))
        each = RankDifferences(ranks, operators, list(_collectives(one, other, foreign)), [sums])
        if each.operators or each.collectives or sums.scopes or sums.figures:
            # Kinds of ranks with the same differences, each in groups of its own, are one.
            sent = [
                (d.name, d.cell, d.line, *(text and text.partition(OVER)[0] for text in (d.first, d.second)), d.why)
                for d in each.collectives
            ]
            same = kinds.setdefault((tuple(each.operators), tuple(sent)), each)
            if same is not each:
                same.ranks = _joined(same.ranks, each.ranks)
                alike = [s for s in same.sums if s.figures == sums.figures and s.scopes == sums.scopes]
                same.sums += [] if alike else [sums]
                for known_sums in alike:
                    known_sums.ranks = _joined(known_sums.ranks, sums.ranks)
    found.kinds = list(kinds.values())
    return found


def _joined(one: RankPair, other: RankPair) -> RankPair:
    first, second = (tuple(sorted({*ours, *theirs})) for ours, theirs in zip(one, other, strict=True))
    return first, second


def _layouts(first: CompileFacts, second: CompileFacts) -> Iterator[Difference]:
    if first.plan is None or second.plan is None:
        return
    for name in dict.fromkeys([*first.plan.operators, *second.plan.operators]):
        one, other = first.plan.operators.get(name), second.plan.operators.get(name)
        if one != other:
            cell, _, operator = name.rpartition("/")
            texts = [None if layouts is None else "; ".join(layouts) for layouts in (one, other)]
            yield Difference(operator, cell, "", texts[0], texts[1])


def _tensors(first: CompileFacts, second: CompileFacts) -> Iterator[Difference]:
    if not first.tensors or not second.tensors:
        return
    ours, theirs = ({tensor.name: tensor for tensor in facts.tensors} for facts in (first, second))
    known = _Sources(first, second)
    partial = not all(facts.pipeline is None or facts.pipeline.is_whole for facts in (first, second))
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None:
            there = one or other
            assert there is not None
            if partial:
                continue  # a stage missing from the folder may have it
            if there.kind == "output" and not all(any(t.kind == "output" for t in f.tensors) for f in (first, second)):
                continue  # a dump's text does not list them
            texts = [None if t is None else f"{t.type or t.slice} {t.layout}".strip() for t in (one, other)]
            yield Difference(name, there.kind, "", texts[0], texts[1])
            continue
        told = [(getattr(one, key), getattr(other, key)) for key in ("type", "slice", "layout", "initial")]
        differing = [(a, b) for a, b in told if a and b and a != b]
        if not differing and known.swapped((one.source,), (other.source,)):
            differing = [(one.source, other.source)]
        if differing:
            texts = [" ".join(dict.fromkeys(pair[side] for pair in differing)) for side in (0, 1)]
            yield Difference(name, one.kind, "", texts[0], texts[1])


def _same_ranks(first: Sequence[GraphFacts], second: Sequence[GraphFacts]) -> list[tuple[GraphFacts, GraphFacts]]:
    """Return the pairs of kinds that have ranks in common, each once; the first kind of each if there are none."""
    of_rank = {rank: kind for kind in second for rank in kind.ranks}
    pairs: dict[tuple[int, int], tuple[GraphFacts, GraphFacts]] = {}
    for one in first:
        for rank in one.ranks:
            if rank in of_rank:
                pairs.setdefault((id(one), id(of_rank[rank])), (one, of_rank[rank]))
    return list(pairs.values()) or list(zip(first[:1], second[:1], strict=False))


def _operators(
    first: GraphFacts, second: GraphFacts, foreign: bool, moved: Collection[Place], known: _Sources
) -> Iterator[Difference]:
    """Yield the operators that differ. moved: operators in another stage, which other ranks therefore run."""
    same_rank = first.ranks[0] == second.ranks[0]

    def said(fact: OperatorFact) -> Hashable:
        bare = tuple(text.partition(EQUALS)[0] for text in fact.inputs)
        return (bare, fact.outputs) if foreign else (fact.inputs, fact.outputs, fact.attributes if same_rank else "")

    stages: list[MatchingRound] = [
        (lambda f: (place_of(f), f.line, f.sharding), True), (lambda f: (place_of(f), f.line), False), (place_of, True),
        (place_of, False), (lambda f: (f.phase, f.label, f.outputs), False),
    ]  # fmt: skip
    if foreign:
        stages += [(lambda f: (cell_of(f.scope), f.operator), True), (lambda f: f.label, False)]
    for one, other in paired(first.operators, second.operators, stages, said):
        there = one or other
        assert there is not None
        if one is not None and other is not None:
            told = [(one.inputs, other.inputs), (one.sharding, other.sharding)]
            alike = all(ours == theirs for ours, theirs in told if ours and theirs)
            if same_rank and not foreign and None not in (one.attributes, other.attributes):
                alike = alike and one.attributes == other.attributes
            swapped = known.swapped(one.sources, other.sources)
            if (said(one) == said(other) or (alike and one.outputs == other.outputs)) and not swapped:
                continue
        elif moved and place_of(there) in moved:
            continue
        attributes = one is not None and other is not None and one.attributes != other.attributes
        texts = [None if fact is None else _operator_text(fact, attributes) for fact in (one, other)]
        if one is not None and other is not None and texts[0] == texts[1]:
            texts = [f"{text} of {', '.join(f.sources)}" for f, text in zip((one, other), texts, strict=True)]
        yield Difference(_phased(there.label, there.phase), cell_of(there.scope), there.line, texts[0], texts[1])


def _operator_text(fact: OperatorFact, with_attributes: bool) -> str:
    told = f" {{{fact.attributes}}}" if with_attributes and fact.attributes else ""
    sharding = f", sharded {fact.sharding}" if fact.sharding else ""
    return f"{'; '.join(fact.inputs)} -> {'; '.join(fact.outputs)}{told}{sharding}".strip()


def _phased(label: str, phase: str) -> str:
    return label if phase == "forward" else f"{label} ({phase})"


def _collectives(first: GraphFacts, second: GraphFacts, foreign: bool) -> Iterator[SentDifference]:
    same_rank = first.ranks[0] == second.ranks[0]

    def said(sent: _Sent) -> tuple[Hashable, ...]:
        row, tensor = sent[0].row, sent[1]
        ranks = () if foreign else row.ranks if same_rank else len(row.ranks)
        return row.operator, "" if foreign else sent[0].attributes, tensor.bytes, row.times, ranks

    def cell(sent: _Sent) -> Hashable:
        fact, tensor = sent
        return fact.row.phase, "" if tensor.parameter else cell_of(fact.scope), tensor.parameter

    def place(sent: _Sent) -> Hashable:
        """Return the cell and the line; a gradient is identified by its parameter alone."""
        return ("", "", sent[1].parameter) if sent[1].parameter else (cell(sent), "" if foreign else sent[0].row.line)

    stages: list[MatchingRound] = [
        (lambda s: (place(s), s[0].row.reason), True), (place, True), (lambda s: (cell(s), s[0].row.reason), True),
        (cell, True), (lambda s: (place(s), s[0].row.operator), False), (place, False),
    ]  # fmt: skip
    ours, theirs = ([(f, tensor) for f in facts.collectives for tensor in f.tensors] for facts in (first, second))
    for pair in paired(ours, theirs, stages, said):
        known: list[_Sent] = [sent for sent in pair if sent is not None]
        if len(known) == 2 and said(known[0]) == said(known[1]):
            continue
        (fact, tensor), *_ = known
        alike = len({sent[0].row.operator for sent in known}) == 1
        attributes = len(known) == 2 and alike and said(known[0])[1] != said(known[1])[1]
        texts = [None if sent is None else _sent_text(*sent, attributes) for sent in pair]
        why = tuple(dict.fromkeys(sent[0].row.reason for sent in known if sent[0].row.reason))
        operators = tuple("" if sent is None else sent[0].row.operator for sent in pair)
        nbytes = tuple(0 if sent is None else sent[1].bytes for sent in pair)
        by_name = f"{GRADIENT_OF}{tensor.parameter}"
        name = by_name if tensor.parameter else _phased(fact.row.operator, fact.row.phase)
        yield SentDifference(name, tensor.cell, fact.row.line, texts[0], texts[1], why, operators, nbytes)


def _sent_text(fact: CollectiveFact, tensor: SentTensor, with_attributes: bool) -> str:
    times = f", {fact.row.times}" if fact.row.times else ""
    attributes = f" {{{fact.attributes}}}" if fact.attributes and with_attributes else ""
    return f"{fact.row.operator}{attributes} of {tensor.bytes} bytes{times}{OVER}{group(fact.row.ranks)}"


def _scopes(first: GraphFacts, second: GraphFacts, foreign: bool) -> Iterator[ScopeDifference]:
    for cell in dict.fromkeys([*first.scopes, *second.scopes]):
        one, other = (facts.scopes.get(cell, ScopeTotals(seconds=0.0)) for facts in (first, second))
        if _sums(one, not foreign) != _sums(other, not foreign):
            yield ScopeDifference(cell, one, other)


def _sums(totals: ScopeTotals, timed: bool) -> Hashable:
    return totals.sent, totals.bytes_sent, time_text(totals.seconds) if timed and totals.seconds is not None else ""


def _figures(first: GraphFacts, second: GraphFacts) -> Iterator[Figure]:
    figures = [
        Figure("operators", "", len(first.operators), len(second.operators)),
        Figure("collectives", "", first.runs.total(), second.runs.total()),
        Figure("bytes sent", "bytes", first.bytes_sent, second.bytes_sent),
    ]
    if first.memory is not None and second.memory is not None:
        figures += [
            Figure(f"memory: {name}", "bytes", getattr(first.memory, name), getattr(second.memory, name))
            for name in MAX_FIGURES
        ]
        figures.append(Figure("memory: together", "bytes", first.memory.total, second.memory.total))
        figures.append(Figure("memory: on the host", "bytes", first.memory.on_host, second.memory.on_host))
    if first.times is not None and second.times is not None:
        figures += [
            Figure(f"time: {name}", "seconds", getattr(first.times, name), getattr(second.times, name))
            for name in ("step", "compute", "exposed")
        ]
    differing = (figure for figure in figures if figure.first != figure.second)
    return (f for f in differing if f.unit != "seconds" or time_text(f.first) != time_text(f.second))


Pair = tuple[Any, Any]
"""An entry and its counterpart; None in place of a missing one."""


MatchingRound = tuple[Callable[[Any], Hashable], bool]
"""A round of matching: entries with equal keys match; if True, only those with equal contents, too."""


def paired(
    first: Iterable[Any], second: Iterable[Any], stages: Sequence[MatchingRound], said: Callable[[Any], Hashable]
) -> list[Pair]:
    """Return every entry of both lists once, in the order of the first and then of the second. first, second: the
    entries. stages: tried in order on the entries that remain; those with equal keys are matched in list order. said:
    returns the content of an entry that may differ between the two."""
    left, right = list(first), list(second)
    of_left: dict[int, int] = {}
    of_right: dict[int, int] = {}
    for key, equal in stages:
        open_right: dict[Hashable, deque[int]] = {}
        for place, entry in enumerate(right):
            if place not in of_right:
                open_right.setdefault((key(entry), equal and said(entry)), deque()).append(place)
        for place, entry in enumerate(left):
            known = open_right.get((key(entry), equal and said(entry))) if place not in of_left else None
            if known:
                found = known.popleft()
                of_left[place], of_right[found] = found, place
    pairs: list[Pair] = [(entry, right[of_left[i]] if i in of_left else None) for i, entry in enumerate(left)]
    return pairs + [(None, entry) for i, entry in enumerate(right) if i not in of_right]


YES = "yes"
RECOMPUTED, STORED, GATHERED = "computed again for gradients", "stored as", "gathered again for gradients"
OFFLOADED = "kept on the host"


def memory_differences(first: PlanEntries | None, second: PlanEntries | None) -> list[Difference]:
    """Return the cells and parameters that two plans treat in different ways; none if either plan is None.

    The cell of a Difference names the treatment; `first` or `second` is None if that plan does not apply it.
    """
    if first is None or second is None:
        return []
    pairs = (
        (RECOMPUTED, dict.fromkeys(first.recompute, YES), dict.fromkeys(second.recompute, YES)),
        (STORED, first.parameters, second.parameters),
        (GATHERED, dict.fromkeys(first.gather_again, YES), dict.fromkeys(second.gather_again, YES)),
        (OFFLOADED, dict.fromkeys(first.offload, YES), dict.fromkeys(second.offload, YES)),
    )
    return [
        Difference(name, what, "", ours.get(name), theirs.get(name))
        for what, ours, theirs in pairs
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name) != theirs.get(name)
    ]


Place = tuple[str, str, str]
"""The phase, the cell and the label of operators."""


@dataclass(frozen=True)
class BorderDifference:
    """A boundary of stages with different traffic of a rank in a step. messages, bytes: in each of the two."""

    source: int
    target: int
    messages: tuple[int, int]
    bytes: tuple[int, int]


@dataclass(frozen=True)
class StageDifference:
    """A stage with another idle share, or another number of saved micro-batches. idle: the share of a step, in each of
    the two; None if one has no such stage."""

    stage: int
    idle: tuple[float | None, float | None]
    keeps: tuple[int | None, int | None]


@dataclass(frozen=True)
class StageDifferences:
    """All differences between the pipelines of two compiles.

    settings: the numbers of stages, micro-batches and chunks, the schedule. moved: operators in another stage, a
    Difference for each. borders, stages: those that differ. step: predicted seconds with all waits, if they differ.
    """

    settings: list[Difference] = field(default_factory=list[Difference])
    moved: list[Difference] = field(default_factory=list[Difference])
    borders: list[BorderDifference] = field(default_factory=list[BorderDifference])
    stages: list[StageDifference] = field(default_factory=list[StageDifference])
    step: tuple[float, float] | None = None

    def __bool__(self) -> bool:
        return bool(self.settings or self.moved or self.borders or self.stages or self.step)


DIGITS = 4
"""Decimal places to which idle shares are compared: a tenth of a percent is shown."""


def stage_differences(
    first: PipelineFacts | None, second: PipelineFacts | None
) -> tuple[StageDifferences, frozenset[Place]]:
    """Return the differences of two pipelines, and the places of the operators that are in another stage. If one is
    None, a network in one stage, only the settings are compared."""
    if first is None and second is None:
        return StageDifferences(), frozenset()
    settings = list(_settings(first, second))
    if first is None or second is None:
        return StageDifferences(settings), frozenset()
    moved = dict(_moved(_places(first), _places(second))) if first.is_whole and second.is_whole else {}
    every = [difference for differences in moved.values() for difference in differences]
    borders = [
        BorderDifference(*border, (one[0], other[0]), (one[1], other[1]))
        for border in sorted({*first.borders, *second.borders})
        for one, other in [(first.borders.get(border, (0, 0)), second.borders.get(border, (0, 0)))]
        if one != other and _both_tell(border[0], first, second)
    ]
    stages = list(_stages(first, second))
    step = (first.step, second.step) if first.step is not None and second.step is not None else None
    if step is not None and f"{step[0]:.4g}" == f"{step[1]:.4g}":
        step = None
    return StageDifferences(settings, every, borders, stages, step), frozenset(moved)


def _both_tell(stage: int, first: PipelineFacts, second: PipelineFacts) -> bool:
    """Return whether each of the two has a program of a stage, or no such stage."""
    return all(stage in facts.stages or stage >= facts.count for facts in (first, second))


def place_of(fact: OperatorFact) -> Place:
    """Return the key by which an operator is identified in both."""
    return fact.phase, cell_of(fact.scope), fact.label


def _settings(first: PipelineFacts | None, second: PipelineFacts | None) -> Iterator[Difference]:
    ours, theirs = ({"stages": 1} if facts is None else facts.settings for facts in (first, second))
    if all(settings.get("chunks") == settings["stages"] for settings in (ours, theirs)):
        theirs = {name: value for name, value in theirs.items() if name != "chunks"}  # one chunk of every stage
    for name in ours:
        if name in theirs and ours[name] != theirs[name]:
            yield Difference(name, "", "", str(ours[name]), str(theirs[name]))


def _places(facts: PipelineFacts) -> dict[Place, list[tuple[int, OperatorFact]]]:
    """Return the operators of every place with their stages, in the order of stages."""
    every = ((number, fact) for number, kind in sorted(facts.stages.items()) for fact in kind.operators)
    return alike(every, lambda entry: place_of(entry[1]))


def _moved(
    ours: Mapping[Place, list[tuple[int, OperatorFact]]], theirs: Mapping[Place, list[tuple[int, OperatorFact]]]
) -> Iterator[tuple[Place, list[Difference]]]:
    """Yield, by place, the operators that are in another stage. A place with different counts in the two is skipped,
    as for work repeated for every micro-batch, because its operators cannot be matched."""
    for place, facts in ours.items():
        others = theirs.get(place, [])
        if len(others) != len(facts):
            continue
        found = [
            Difference(one.label, cell_of(one.scope), one.line, f"stage {stage}{types[0]}", f"stage {there}{types[1]}")
            for (stage, one), (there, other) in zip(facts, others, strict=True)
            if stage != there
            for types in [_changed_types(one, other)]
        ]
        if found:
            yield place, found


def _changed_types(one: OperatorFact, other: OperatorFact) -> list[str]:
    """Return the types of an operator in both as `: types`, "" if they are equal."""
    types = [f": {'; '.join(fact.inputs)} -> {'; '.join(fact.outputs)}" for fact in (one, other)]
    return types if types[0] != types[1] else ["", ""]


def _stages(first: PipelineFacts, second: PipelineFacts) -> Iterator[StageDifference]:
    for stage in sorted({*first.stages, *second.stages}):
        idle, keeps = ((one(stage), other(stage)) for one, other in (
            (first.idle, second.idle), (first.keeps, second.keeps)
        ))  # fmt: skip
        shares = [None if share is None else round(share, DIGITS) for share in idle]
        timed = all(facts.timeline is not None or stage not in facts.stages for facts in (first, second))
        if timed and _both_tell(stage, first, second) and (shares[0] != shares[1] or keeps[0] != keeps[1]):
            yield StageDifference(stage, (shares[0], shares[1]), keeps)
