"""This module finds what the pipelines of two compiles differ in: schedules, borders, stages of operators, idle times.

An operator is known by its phase, its cell and its label, and those of one name by their order through the stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from mspc.commands.comparison.difference import Difference
from mspc.commands.facts.model import OperatorFact, PipelineFacts, cell_of
from mspc.ir.late_dataclass import dataclass

Place = tuple[str, str, str]
"""The phase, the cell and the label of operators."""


@dataclass(frozen=True)
class BorderDifference:
    """A border of stages over which a rank sends otherwise in a step. messages, bytes: in each of the two."""

    source: int
    target: int
    messages: tuple[int, int]
    bytes: tuple[int, int]


@dataclass(frozen=True)
class StageDifference:
    """A stage that is idle otherwise, or keeps another number of micro-batches. idle: the part of a step, in each of
    the two; None where one has no such stage."""

    stage: int
    idle: tuple[float | None, float | None]
    keeps: tuple[int | None, int | None]


@dataclass(frozen=True)
class StageDifferences:
    """All that the pipelines of two compiles differ in.

    settings: the numbers of stages, micro-batches and chunks, the schedule. moved: operators in another stage, a
    Difference for each. borders, stages: those that differ. step: predicted seconds with all waits, where they differ.
    """

    settings: list[Difference] = field(default_factory=list[Difference])
    moved: list[Difference] = field(default_factory=list[Difference])
    borders: list[BorderDifference] = field(default_factory=list[BorderDifference])
    stages: list[StageDifference] = field(default_factory=list[StageDifference])
    step: tuple[float, float] | None = None

    def __bool__(self) -> bool:
        return bool(self.settings or self.moved or self.borders or self.stages or self.step)


DIGITS = 4
"""Digits behind the point of an idle share that count: a tenth of a percent is shown."""


def stage_differences(
    first: PipelineFacts | None, second: PipelineFacts | None
) -> tuple[StageDifferences, frozenset[Place]]:
    """What two pipelines differ in, and the names of operators that are in another stage. Of a network in one stage
    (None) the settings of the other are told alone."""
    if first is None and second is None:
        return StageDifferences(), frozenset()
    settings = list(_settings(first, second))
    if first is None or second is None:
        return StageDifferences(settings), frozenset()
    moved = dict(_moved(_places(first), _places(second))) if is_whole(first) and is_whole(second) else {}
    every = [difference for differences in moved.values() for difference in differences]
    borders, stages = list(_borders(first, second)), list(_stages(first, second))
    return StageDifferences(settings, every, borders, stages, _step(first, second)), frozenset(moved)


def is_whole(facts: PipelineFacts) -> bool:
    """Whether there is a program of every stage."""
    return len(facts.stages) == facts.count


def _both_tell(stage: int, first: PipelineFacts, second: PipelineFacts) -> bool:
    """Whether both have a program of a stage, or no such stage."""
    return all(stage in facts.stages or stage >= facts.count for facts in (first, second))


def place_of(fact: OperatorFact) -> Place:
    """By what an operator is known in both."""
    return fact.phase, cell_of(fact.scope), fact.label


def _settings(first: PipelineFacts | None, second: PipelineFacts | None) -> Iterator[Difference]:
    for name, key in (("stages", "count"), ("schedule", "schedule"), ("micro-batches", "micro_batches"),
                      ("chunks", "chunks")):  # fmt: skip
        one, other = ((1 if key == "count" else "") if facts is None else getattr(facts, key)
                      for facts in (first, second))  # fmt: skip
        told = key == "count" or (first and second and one and other)
        if told and one != other and not (key == "chunks" and _one_chunk_each(first, second)):
            yield Difference(name, "", "", str(one), str(other))


def _one_chunk_each(first: PipelineFacts | None, second: PipelineFacts | None) -> bool:
    """Whether every stage has one chunk in both: then their number says nothing more."""
    return all(facts is not None and facts.chunks == facts.count for facts in (first, second))


def _places(facts: PipelineFacts) -> dict[Place, list[tuple[int, OperatorFact]]]:
    """The operators of one name with their stages, in order."""
    found: dict[Place, list[tuple[int, OperatorFact]]] = {}
    for number, stage in sorted(facts.stages.items()):
        for fact in stage.operators:
            found.setdefault(place_of(fact), []).append((number, fact))
    return found


def _moved(
    ours: Mapping[Place, list[tuple[int, OperatorFact]]], theirs: Mapping[Place, list[tuple[int, OperatorFact]]]
) -> Iterator[tuple[Place, list[Difference]]]:
    """By name the operators that are in another stage. Where there is another number of one name in all, as of what a
    stage computes for every micro-batch, nothing says which is which."""
    for place, facts in ours.items():
        others = theirs.get(place, [])
        if len(others) != len(facts):
            continue
        found = [
            Difference(one.label, cell_of(one.scope), one.line, *_texts(stage, one, there, other))
            for (stage, one), (there, other) in zip(facts, others, strict=True)
            if stage != there
        ]
        if found:
            yield place, found


def _texts(stage: int, one: OperatorFact, there: int, other: OperatorFact) -> tuple[str, str]:
    """The stages of an operator in both, with its types where they have changed too."""
    types = [f"{'; '.join(fact.inputs)} -> {'; '.join(fact.outputs)}" for fact in (one, other)]
    told = [f": {text}" if types[0] != types[1] else "" for text in types]
    return f"stage {stage}{told[0]}", f"stage {there}{told[1]}"


def _borders(first: PipelineFacts, second: PipelineFacts) -> Iterator[BorderDifference]:
    for border in sorted({*first.borders, *second.borders}):
        one, other = (facts.borders.get(border, (0, 0)) for facts in (first, second))
        if one != other and _both_tell(border[0], first, second):
            yield BorderDifference(*border, (one[0], other[0]), (one[1], other[1]))


def _stages(first: PipelineFacts, second: PipelineFacts) -> Iterator[StageDifference]:
    for stage in sorted({*first.stages, *second.stages}):
        one, other = (facts.stages.get(stage) for facts in (first, second))
        idle = tuple(None if each is None or each.idle is None else round(each.idle, DIGITS) for each in (one, other))
        keeps = tuple(None if each is None else each.keeps for each in (one, other))
        timed = all(each is None or each.idle is not None for each in (one, other))
        if timed and _both_tell(stage, first, second) and (idle[0] != idle[1] or keeps[0] != keeps[1]):
            yield StageDifference(stage, (idle[0], idle[1]), (keeps[0], keeps[1]))


def _step(first: PipelineFacts, second: PipelineFacts) -> tuple[float, float] | None:
    if first.step is None or second.step is None or f"{first.step:.4g}" == f"{second.step:.4g}":
        return None
    return first.step, second.step
