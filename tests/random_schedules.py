"""Random schedules and programs of stages that are right, and the same ones with one fault, for tests and for
`benchmarks/pipelines/faults.py`.

A right one is a random run: an action after the other is drawn from those that could be next, so that it runs to its
end by the way it was made. Whether an exchange of two actions is a fault says a judge of its own, which sorts all
actions by what they read; the other faults are faults always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from random import Random

from mspc.passes.lib.schedule_checks import Event, ReceiveEvent, SendEvent, WorkEvent
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Entry,
    Overlapped,
    Schedule,
    handed_on,
    makes,
    parts_of,
    reads,
)  # fmt: skip

Programs = list[list[Event]]
Order = list[list[Entry]]
Run = tuple[list[int], int, list[Action]]
"""The stage of every chunk, the number of micro-batches, and all actions in the order of one run."""


def random_run(draw: Random) -> Run:
    """Of 1 to 4 stages, 1 to 3 chunks a stage and 1 to 5 micro-batches, whole and split backwards mixed."""
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
    """A right one; in every third, neighbours overlap where the judge allows it."""
    placement, micro_batches, actions = random_run(draw)
    order: Order = [[] for _ in range(max(placement) + 1)]
    for action in actions:
        order[placement[action.chunk]].append(action)
    made = _schedule(order, micro_batches, placement)
    return made if draw.random() < 2 / 3 else _with_overlap(draw, made)


def _with_overlap(draw: Random, schedule: Schedule) -> Schedule:
    stage = draw.randrange(schedule.stages)
    own = list(schedule.entries[stage])
    for place in range(len(own) - 2, -1, -1):
        pair = {entry.kind: entry for entry in own[place : place + 2] if isinstance(entry, Action)}
        if pair.keys() == {FORWARD, BACKWARD} and draw.random() < 0.5:
            there = [*own[:place], Overlapped(pair[FORWARD], pair[BACKWARD]), *own[place + 2 :]]
            entries = (*schedule.entries[:stage], tuple(there), *schedule.entries[stage + 1 :])
            if runs(replace(schedule, entries=entries)):
                return replace(schedule, entries=entries)
    return schedule


def _schedule(order: Order, micro_batches: int, placement: list[int] | tuple[int, ...]) -> Schedule:
    return Schedule("random", micro_batches, tuple(placement), tuple(map(tuple, order)))


def runs(schedule: Schedule) -> bool:
    """The judge: whether all actions of all stages can be sorted such that each comes behind the one before it on its
    stage and behind those that make what it reads."""
    maker = {
        made: (stage, place)
        for stage, entries in enumerate(schedule.entries)
        for place, entry in enumerate(entries)
        for part in parts_of(entry)
        for made in makes(part)
    }
    graph: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for stage, entries in enumerate(schedule.entries):
        for place, entry in enumerate(entries):
            before = {maker[value] for part in parts_of(entry) for value in reads(part, schedule.chunks)}
            if (stage, place) in before:
                return False
            graph[stage, place] = before | ({(stage, place - 1)} if place else set())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


def random_programs(draw: Random) -> Programs:
    """Right ones: a message is sent when it is made, and received, in the order of its pair of stages, at any time
    until it is read."""
    placement, _, actions = random_run(draw)
    chunks = len(placement)
    programs: Programs = [[] for _ in range(max(placement) + 1)]
    on_the_way: dict[tuple[int, int], list[tuple[str, int]]] = {}

    def receive(pair: tuple[int, int]) -> tuple[str, int]:
        value = on_the_way[pair].pop(0)
        programs[pair[1]].append(ReceiveEvent(pair[0], *value, nbytes=8))
        return value

    for action in actions:
        stage = placement[action.chunk]
        for value in reads(action, chunks):
            pair = placement[value[1]], stage
            while _named(value) in on_the_way.get(pair, ()):
                receive(pair)
        read = tuple(map(_named, reads(action, chunks)))
        programs[stage].append(WorkEvent(str(action), read, tuple(map(_named, makes(action)))))
        handed = handed_on(action, chunks)
        if handed is not None and placement[handed[1]] != stage:
            target = placement[handed[1]]
            programs[stage].append(SendEvent(target, *_named(handed[0]), nbytes=8))
            on_the_way.setdefault((stage, target), []).append(_named(handed[0]))
        waiting = [pair for pair, values in on_the_way.items() if values]
        if waiting and draw.random() < 0.3:
            receive(draw.choice(waiting))
    return programs


def _named(value: tuple[str, int, int]) -> tuple[str, int]:
    return f"{value[0]} {value[1]}", value[2]


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
        made = {value for part in map(parts_of, schedule.entries[stage]) for each in part for value in makes(each)}
        for entry in schedule.entries[stage]:
            if any(value in made for part in parts_of(entry) for value in reads(part, schedule.chunks)):
                return True
            made -= {value for part in parts_of(entry) for value in makes(part)}
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
    entry = order[stage][place]
    order[stage][place] = (
        replace(entry, forward=change(entry.forward)) if isinstance(entry, Overlapped) else change(entry)
    )
    return _schedule(order, schedule.micro_batches, schedule.placement)


def _other(draw: Random, number: int) -> int:
    """Another number from -1 to two more."""
    return draw.choice([each for each in range(-1, number + 3) if each != number])


SCHEDULE_FAULTS = (
    drop_action, double_action, exchange_actions, exchange_over_stages, change_micro_batch, change_chunk, change_kind,
)  # fmt: skip


# Faults of messages


def drop_message(draw: Random, programs: Programs) -> Programs | None:
    """A side of a message is missing; None, here and below, where there is no message."""
    return _edited(draw, programs, lambda event: [])


def double_message(draw: Random, programs: Programs) -> Programs | None:
    """A side of a message is there twice."""
    return _edited(draw, programs, lambda event: [event, event])


def change_message(draw: Random, programs: Programs) -> Programs | None:
    """A side of a message is of another micro-batch."""
    return _edited(draw, programs, lambda event: [replace(event, micro_batch=_other(draw, event.micro_batch))])


def change_size(draw: Random, programs: Programs) -> Programs | None:
    """A side of a message has another size."""
    return _edited(draw, programs, lambda event: [replace(event, nbytes=4)])


def change_partner(draw: Random, programs: Programs) -> Programs | None:
    """A side of a message is for another stage, or for none that there is."""

    def change(event: SendEvent | ReceiveEvent) -> list[Event]:
        if isinstance(event, SendEvent):
            return [replace(event, target=_other(draw, event.target))]
        return [replace(event, source=_other(draw, event.source))]

    return _edited(draw, programs, change)


def exchange_messages(draw: Random, programs: Programs) -> Programs | None:
    """A stage sends two messages to another stage in exchanged places."""
    found = [
        (stage, first, second)
        for stage, program in enumerate(programs)
        for first, event in enumerate(program)
        for second in range(first)
        if isinstance(event, SendEvent) and isinstance(program[second], SendEvent)
        if event.target == program[second].target
    ]
    if not found:
        return None
    stage, first, second = draw.choice(found)
    made = [list(program) for program in programs]
    made[stage][first], made[stage][second] = made[stage][second], made[stage][first]
    return made


def plant_circle(draw: Random, programs: Programs) -> Programs | None:
    """Some stages each wait for the next one before they send."""
    if len(programs) == 1:
        return None
    made = [list(program) for program in programs]
    chosen = draw.sample(range(len(programs)), draw.randint(2, len(programs)))
    for stage, following in zip(chosen, [*chosen[1:], chosen[0]], strict=True):
        before = chosen[chosen.index(stage) - 1]
        place = draw.randint(0, len(made[stage]))
        made[stage][place:place] = [ReceiveEvent(following, "planted", 0), SendEvent(before, "planted", 0)]
        made[stage].insert(0, WorkEvent("planted", makes=(("planted", -1),)))
    return made


def _edited(
    draw: Random, programs: Programs, edit: Callable[[SendEvent | ReceiveEvent], list[Event]]
) -> Programs | None:
    sides = [
        (stage, place, event)
        for stage, program in enumerate(programs)
        for place, event in enumerate(program)
        if not isinstance(event, WorkEvent)
    ]
    if not sides:
        return None
    stage, place, event = draw.choice(sides)
    made = [list(program) for program in programs]
    made[stage][place : place + 1] = edit(event)
    return made


MESSAGE_FAULTS = (
    drop_message, double_message, change_message, change_size, change_partner, exchange_messages, plant_circle,
)  # fmt: skip
