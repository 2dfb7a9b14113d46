"""Whether a schedule has every action that there has to be, once, on the stage that has its chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.ir.location import Location
from mspc.ir.nearest import did_you_mean
from mspc.passes.pipelining.schedules.action import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    parts_of,
)  # fmt: skip
from mspc.passes.pipelining.schedules.problem import DOUBLED, MISSING, UNKNOWN, WRONG_STAGE, Problem, at

Lines = Sequence[Sequence[Location]]
"""Where each entry of each stage stands."""
Place = tuple[int, Location | None]
"""A stage, and a line of it."""


def incompleteness(schedule: Schedule, lines: Lines | None = None) -> list[Problem]:
    """Actions that are missing, doubled, of no chunk or micro-batch that there is, or on another stage than the chunk.

    Every micro-batch needs on every chunk one forward, and either one backward or both gradients by themselves.
    """
    found: list[Problem] = []
    seen: dict[Action, Place] = {}
    for stage, entries in enumerate(schedule.entries):
        for place, entry in enumerate(entries):
            line = lines[stage][place] if lines else None
            for action in parts_of(entry):
                found += _misplaced(schedule, action, stage, line)
                if action in seen:
                    found.append(_doubled(f"{told(action)} is there twice", (stage, line), seen[action], action))
                seen.setdefault(action, (stage, line))
    found += _missing(schedule, seen, lines)
    return found


def told(action: Action) -> str:
    """An action in words."""
    return f"the {KINDS[action.kind]} of micro-batch {action.micro_batch} on chunk {action.chunk} ({action})"


def _misplaced(schedule: Schedule, action: Action, stage: int, line: Location | None) -> Iterator[Problem]:
    if action.kind not in KINDS:
        notes = (*did_you_mean(action.kind, KINDS), f"there are {', '.join(f'{k} ({v})' for k, v in KINDS.items())}")
        yield Problem(UNKNOWN, f"stage {stage}: there is no kind of action {action.kind!r}", line, notes)
    elif not 0 <= action.chunk < schedule.chunks:
        note = f"there are chunks 0 to {schedule.chunks - 1}"
        yield Problem(UNKNOWN, f"stage {stage}: {told(action)} is of no chunk that there is", line, (note,))
    elif not 0 <= action.micro_batch < schedule.micro_batches:
        note = f"there are micro-batches 0 to {schedule.micro_batches - 1}"
        yield Problem(UNKNOWN, f"stage {stage}: {told(action)} is of no micro-batch that there is", line, (note,))
    elif schedule.placement[action.chunk] != stage:
        message = f"{told(action)} is on stage {stage}, but its chunk is on stage {schedule.placement[action.chunk]}"
        yield Problem(WRONG_STAGE, message, line)


def _doubled(message: str, place: Place, other: Place, action: Action) -> Problem:
    stage, line = place
    return Problem(DOUBLED, f"stage {stage}: {message}", line, (at(f"{action} on stage {other[0]}", other[1]),))


def _missing(schedule: Schedule, seen: dict[Action, Place], lines: Lines | None) -> Iterator[Problem]:
    """What is not there, told at the end of its stage's line."""
    for chunk, stage in enumerate(schedule.placement):
        end = lines[stage][-1] if lines and lines[stage] else None
        for number in range(schedule.micro_batches):
            forward, backward, for_inputs, for_weights = (
                Action(kind, chunk, number) for kind in (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
            )
            apart = [action for action in (for_inputs, for_weights) if action in seen]
            if forward not in seen:
                yield Problem(MISSING, f"stage {stage}: {told(forward)} is missing", end)
            if backward in seen:
                for action in apart:
                    why = f"{told(action)} is there beside the backward, which is both gradients"
                    yield _doubled(why, seen[action], seen[backward], backward)
            elif not apart:
                yield Problem(MISSING, f"stage {stage}: {told(backward)} is missing, or both gradients apart", end)
            elif len(apart) == 1:
                other = for_weights if apart == [for_inputs] else for_inputs
                notes = (at(f"{apart[0]} on stage {seen[apart[0]][0]}", seen[apart[0]][1]),)
                yield Problem(MISSING, f"stage {stage}: {told(other)} is missing", end, notes)
