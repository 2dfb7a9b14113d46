"""A program of a stage as an order of events: its work, and the messages that it sends and receives."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Location
from mspc.passes.pipelining.schedules.action import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Schedule,
    parts_of,
)  # fmt: skip
from mspc.passes.pipelining.schedules.dependence import Made, handed_on, makes, reads

Value = tuple[str, int]
"""The name of a tensor, and its micro-batch."""


@dataclass(frozen=True, slots=True)
class Work:
    """Computation. name: for messages. reads, makes: the values that there must be before it, and are behind it."""

    name: str
    reads: tuple[Value, ...] = ()
    makes: tuple[Value, ...] = ()
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """A value is sent to another stage. nbytes: of the message; 0 where it is not known."""

    target: int
    tensor: str
    micro_batch: int
    nbytes: int = 0
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Receive:
    """A value comes from another stage, and is there behind this. nbytes: as of Send."""

    source: int
    tensor: str
    micro_batch: int
    nbytes: int = 0
    location: Location | None = None


Event = Work | Send | Receive


def programs_of(schedule: Schedule, lines: Sequence[Sequence[Location]] | None = None) -> list[list[Event]]:
    """The events of every stage: values of other stages are received right before the work that reads them first, and
    what other stages read is sent right behind the work that makes it.

    lines: where each entry of each stage stands, if anywhere. Every chunk has to have a stage.
    """
    programs: list[list[Event]] = []
    chunks, placement = schedule.chunks, schedule.placement
    for stage, entries in enumerate(schedule.entries):
        events: list[Event] = []
        for place, entry in enumerate(entries):
            line = lines[stage][place] if lines else None
            parts = parts_of(entry)
            read = [value for part in parts for value in reads(part, chunks)]
            for value in read:
                source = placement[value[1]]
                if source != stage:
                    events.append(Receive(source, *name_of(value), location=line))
            made = [value for part in parts for value in makes(part)]
            events.append(Work(str(entry), tuple(map(name_of, read)), tuple(map(name_of, made)), line))
            for part in parts:
                handed = handed_on(part, chunks)
                if handed is not None and placement[handed[1]] != stage:
                    events.append(Send(placement[handed[1]], *name_of(handed[0]), location=line))
        programs.append(events)
    return programs


_NAMES = {FORWARD: "activation", INPUT_GRADIENT: "gradient", WEIGHT_GRADIENT: "weights' gradient"}


def name_of(value: Made) -> Value:
    """What a value is called, and its micro-batch."""
    return f"{_NAMES[value[0]]} of chunk {value[1]}", value[2]
