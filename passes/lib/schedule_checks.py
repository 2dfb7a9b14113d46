"""Checks of a pipeline's schedule: every action is there once, and no stage waits forever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.ir.diagnostics import Location, MspcError, did_you_mean, raise_all
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Made,
    Schedule,
    makes,
    reads,
)


def _error(message: str, location: Location | None, notes: Sequence[str] = ()) -> MspcError:
    return MspcError(message, location, notes, kind=ValueError)


def at(text: str, location: Location | None) -> str:
    """Return a note on something at a place; without the place if it is unknown."""
    return f"{text}, at {location}" if location else text


Lines = Sequence[Sequence[Location]]
"""The places of each entry of each stage."""
Place = tuple[int, Location | None]
"""A stage, and a line of it."""


def incompleteness(schedule: Schedule, lines: Lines | None = None) -> list[MspcError]:
    """Return actions that are missing, doubled, of no chunk or micro-batch that there is, or on another stage than the
    chunk.

    Every micro-batch needs on every chunk one forward, and either one backward or both gradients by themselves.
    """
    found: list[MspcError] = []
    seen: dict[Action, Place] = {}
    for stage, entries in enumerate(schedule.entries):
        for place, action in enumerate(entries):
            line = lines[stage][place] if lines else None
            found += _misplaced(schedule, action, stage, line)
            if action in seen:
                found.append(_doubled(f"{told(action)} is there twice", (stage, line), seen[action], action))
            seen.setdefault(action, (stage, line))
    found += _missing(schedule, seen, lines)
    return found


def told(action: Action) -> str:
    """Return an action in words."""
    return f"the {KINDS[action.kind]} of micro-batch {action.micro_batch} on chunk {action.chunk} ({action})"


def _misplaced(schedule: Schedule, action: Action, stage: int, line: Location | None) -> Iterator[MspcError]:
    if action.kind not in KINDS:
        notes = (*did_you_mean(action.kind, KINDS), f"there are {', '.join(f'{k} ({v})' for k, v in KINDS.items())}")
        yield _error(f"stage {stage}: there is no kind of action {action.kind!r}", line, notes)
    elif not 0 <= action.chunk < schedule.chunks:
        note = f"there are chunks 0 to {schedule.chunks - 1}"
        yield _error(f"stage {stage}: {told(action)} is of no chunk that there is", line, (note,))
    elif not 0 <= action.micro_batch < schedule.micro_batches:
        note = f"there are micro-batches 0 to {schedule.micro_batches - 1}"
        yield _error(f"stage {stage}: {told(action)} is of no micro-batch that there is", line, (note,))
    elif schedule.placement[action.chunk] != stage:
        message = f"{told(action)} is on stage {stage}, but its chunk is on stage {schedule.placement[action.chunk]}"
        yield _error(message, line)


def _doubled(message: str, place: Place, other: Place, action: Action) -> MspcError:
    stage, line = place
    return _error(f"stage {stage}: {message}", line, (at(f"{action} on stage {other[0]}", other[1]),))


def _missing(schedule: Schedule, seen: dict[Action, Place], lines: Lines | None) -> Iterator[MspcError]:
    for chunk, stage in enumerate(schedule.placement):
        end = lines[stage][-1] if lines and lines[stage] else None
        for number in range(schedule.micro_batches):
            forward, backward, for_inputs, for_weights = (
                Action(kind, chunk, number) for kind in (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
            )
            apart = [action for action in (for_inputs, for_weights) if action in seen]
            if forward not in seen:
                yield _error(f"stage {stage}: {told(forward)} is missing", end)
            if backward in seen:
                for action in apart:
                    why = f"{told(action)} is there beside the backward, which is both gradients"
                    yield _doubled(why, seen[action], seen[backward], backward)
            elif not apart:
                yield _error(f"stage {stage}: {told(backward)} is missing, or both gradients apart", end)
            elif len(apart) == 1:
                other = for_weights if apart == [for_inputs] else for_inputs
                notes = (at(f"{apart[0]} on stage {seen[apart[0]][0]}", seen[apart[0]][1]),)
                yield _error(f"stage {stage}: {told(other)} is missing", end, notes)


_NAMES = {FORWARD: "activation", INPUT_GRADIENT: "gradient", WEIGHT_GRADIENT: "weights' gradient"}


def name_of(value: Made) -> tuple[str, int]:
    """Return the name of a value and its micro-batch."""
    return f"{_NAMES[value[0]]} of chunk {value[1]}", value[2]


def _shown(value: Made) -> str:
    name, number = name_of(value)
    return f"{name!r} of micro-batch {number}"


def _line(lines: Lines | None, stage: int, place: int) -> Location | None:
    return lines[stage][place] if lines else None


def _too_early(schedule: Schedule, lines: Lines | None) -> Iterator[MspcError]:
    for stage, entries in enumerate(schedule.entries):
        made = {value: i for i, action in enumerate(entries) for value in makes(action)}
        for place, action in enumerate(entries):
            for value in reads(action, schedule.chunks):
                maker = made.get(value, -1)  # values of other stages are received before
                if maker >= place:
                    message = f"stage {stage} runs {action} before {_shown(value)} is there"
                    note = at(f"stage {stage} runs {entries[maker]}", _line(lines, stage, maker))
                    yield _error(message, _line(lines, stage, place), (note,))


def _cycles(schedule: Schedule, lines: Lines | None) -> Iterator[MspcError]:
    """Run all stages, each until it waits for a value of another stage that does not come, and yield the circles of
    stages that wait for each other."""
    places = [0] * schedule.stages
    made: set[Made] = set()
    waiting: dict[Made, int] = {}
    running = list(range(schedule.stages))
    while running:
        stage = running.pop()
        while places[stage] < len(schedule.entries[stage]):
            action = schedule.entries[stage][places[stage]]
            read = (value for value in reads(action, schedule.chunks) if schedule.placement[value[1]] != stage)
            missing = next((value for value in read if value not in made), None)
            if missing is not None:
                waiting[missing] = stage
                break
            for value in makes(action):
                made.add(value)
                if value in waiting:
                    running.append(waiting.pop(value))
            places[stage] += 1
    awaited = {stage: value for value, stage in waiting.items()}
    seen: set[int] = set()
    for stage in sorted(awaited):
        chain: list[int] = []
        while stage in awaited and stage not in seen:
            seen.add(stage)
            chain.append(stage)
            stage = schedule.placement[awaited[stage][1]]
        if stage in chain:
            circle = chain[chain.index(stage) :]
            yield _circle(circle, awaited, [_line(lines, each, places[each]) for each in circle])


def _circle(stages: list[int], awaited: dict[int, Made], places: list[Location | None]) -> MspcError:
    who = " and ".join(filter(None, (", ".join(map(str, stages[:-1])), str(stages[-1]))))
    notes: list[str] = []
    for stage, other, place in zip(stages, (*stages[1:], stages[0]), places, strict=True):
        text = f"stage {stage} receives {_shown(awaited[stage])} from stage {other}, and stage {other} sends it later"
        notes.append(at(text, place))
    return _error(f"stages {who} wait for each other", places[0], tuple(notes))


def check_schedule(schedule: Schedule, lines: Lines | None = None) -> list[MspcError]:
    """Return the problems of a schedule; none if it runs to its end.

    Messages are found by tensor and micro-batch, and sends return at once. Orders are checked only if no action is
    missing. lines: the place of each entry of each stage, if known.
    """
    return incompleteness(schedule, lines) or [*_too_early(schedule, lines), *_cycles(schedule, lines)]


def require_schedule(schedule: Schedule, lines: Lines | None = None) -> None:
    """Raise MspcError with all that `check_schedule` finds."""
    raise_all(check_schedule(schedule, lines))
