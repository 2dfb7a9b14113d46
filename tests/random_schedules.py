"""Random schedules that are right, and the same ones with one fault, for tests and `benchmarks/pipelines/runs.py`.

A right one is a random run: an action after the other is drawn from those that could be next, so that it runs to its
end by the way it was made. Whether an exchange of two actions is a fault says a judge of its own, which sorts all
actions by what they read; the other faults are faults always.
"""

from collections.abc import Callable
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from random import Random

from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    makes,
    reads,
)  # fmt: skip

Order = list[list[Action]]
Run = tuple[list[int], int, list[Action]]
"""The stage of every chunk, the number of micro-batches, and all actions in the order of one run."""


def random_run(draw: Random) -> Run:
    """Draw a schedule of 1 to 4 stages, 1 to 3 chunks a stage and 1 to 5 micro-batches, whole and split backwards
    mixed."""
    stages, micro_batches = draw.randint(1, 4), draw.randint(1, 5)
    placement = list(range(stages)) * draw.randint(1, 3)
    if draw.random() < 0.5:
        draw.shuffle(placement)
    split = draw.random()
    ready = [Action(FORWARD, 0, number) for number in range(micro_batches)]
    found: list[Action] = []
    while ready:
        found.append(ready.pop(draw.randrange(len(ready))))
        ready += _behind(found[-1], len(placement), draw.random() < split)
    return placement, micro_batches, found


def _behind(action: Action, chunks: int, split: bool) -> list[Action]:
    """The actions that become possible by one."""
    kind, chunk, number = action.kind, action.chunk, action.micro_batch
    backward = INPUT_GRADIENT if split else BACKWARD
    if kind == FORWARD:
        return [Action(FORWARD, chunk + 1, number) if chunk + 1 < chunks else Action(backward, chunk, number)]
    found = [Action(WEIGHT_GRADIENT, chunk, number)] if kind == INPUT_GRADIENT else []
    if kind != WEIGHT_GRADIENT and chunk:
        found.append(Action(backward, chunk - 1, number))
    return found


def random_schedule(draw: Random) -> Schedule:
    """A right one."""
    placement, micro_batches, actions = random_run(draw)
    order: Order = [[] for _ in range(max(placement) + 1)]
    for action in actions:
        order[placement[action.chunk]].append(action)
    return _schedule(order, micro_batches, placement)


def _schedule(order: Order, micro_batches: int, placement: list[int] | tuple[int, ...]) -> Schedule:
    return Schedule("random", micro_batches, tuple(placement), tuple(map(tuple, order)))


def runs(schedule: Schedule) -> bool:
    """The judge: whether all actions of all stages can be sorted such that each comes behind the one before it on its
    stage and behind those that make what it reads."""
    maker = {
        made: (stage, place)
        for stage, entries in enumerate(schedule.entries)
        for place, action in enumerate(entries)
        for made in makes(action)
    }
    graph: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for stage, entries in enumerate(schedule.entries):
        for place, action in enumerate(entries):
            before = {maker[value] for value in reads(action, schedule.chunks)}
            if (stage, place) in before:
                return False
            graph[stage, place] = before | ({(stage, place - 1)} if place else set())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


# Faults of schedules


def drop_action(draw: Random, schedule: Schedule) -> Schedule:
    """An action is missing."""
    order, stage, place = _place(draw, schedule)
    del order[stage][place]
    return _schedule(order, schedule.micro_batches, schedule.placement)


def double_action(draw: Random, schedule: Schedule) -> Schedule:
    """An action is there twice, on any stage."""
    order, stage, place = _place(draw, schedule)
    other = draw.choice(order)
    other.insert(draw.randint(0, len(other)), order[stage][place])
    return _schedule(order, schedule.micro_batches, schedule.placement)


def exchanged(draw: Random, schedule: Schedule) -> Schedule:
    """Two actions of a stage change places, which may be right or not."""
    order, stage, place = _place(draw, schedule)
    own, other = order[stage], draw.randrange(len(order[stage]))
    own[place], own[other] = own[other], own[place]
    return _schedule(order, schedule.micro_batches, schedule.placement)


def exchange_actions(draw: Random, schedule: Schedule) -> Schedule:
    """Two actions of a stage change places such that the schedule does not run any more."""
    while runs(made := exchanged(draw, schedule)):
        pass
    return made


def exchange_over_stages(draw: Random, schedule: Schedule) -> Schedule:
    """Two actions of a stage change places such that stages wait for each other, where that is found soon: on each
    stage alone the order would be right."""
    found = [exchange_actions(draw, schedule)]
    while _reads_too_early(found[-1]) and len(found) < 20:
        found.append(exchange_actions(draw, schedule))
    return found[-1]


def _reads_too_early(schedule: Schedule) -> bool:
    """Whether a stage reads what it makes itself later."""
    for stage in range(schedule.stages):
        made = {value for action in schedule.entries[stage] for value in makes(action)}
        for action in schedule.entries[stage]:
            if made & set(reads(action, schedule.chunks)):
                return True
            made -= set(makes(action))
    return False


def change_micro_batch(draw: Random, schedule: Schedule) -> Schedule:
    """An action is of another micro-batch, or of one that there is not."""
    return _changed(draw, schedule, lambda action: replace(action, micro_batch=_other(draw, action.micro_batch)))


def change_chunk(draw: Random, schedule: Schedule) -> Schedule:
    """An action is of another chunk, or of one that there is not."""
    return _changed(draw, schedule, lambda action: replace(action, chunk=_other(draw, action.chunk)))


def change_kind(draw: Random, schedule: Schedule) -> Schedule:
    """An action is of another kind."""
    return _changed(
        draw, schedule, lambda action: replace(action, kind=draw.choice([k for k in KINDS if k != action.kind]))
    )


def _place(draw: Random, schedule: Schedule) -> tuple[Order, int, int]:
    """A copy of the order, and a place in it."""
    stage = draw.randrange(schedule.stages)
    return [list(entries) for entries in schedule.entries], stage, draw.randrange(len(schedule.entries[stage]))


def _changed(draw: Random, schedule: Schedule, change: Callable[[Action], Action]) -> Schedule:
    order, stage, place = _place(draw, schedule)
    order[stage][place] = change(order[stage][place])
    return _schedule(order, schedule.micro_batches, schedule.placement)


def _other(draw: Random, number: int) -> int:
    """Another number from -1 to two more."""
    return draw.choice([each for each in range(-1, number + 3) if each != number])


SCHEDULE_FAULTS = (
    drop_action, double_action, exchange_actions, exchange_over_stages, change_micro_batch, change_chunk, change_kind,
)  # fmt: skip
