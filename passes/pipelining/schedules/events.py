"""A program of a stage as an order of events: its work, and the messages that it sends and receives."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Location
from mspc.passes.pipelining.schedules.action import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Entry,
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


def programs_of(
    schedule: Schedule, lines: Sequence[Sequence[Location]] | None = None, *, in_order: bool = False
) -> list[list[Event]]:
    """The events of every stage: values of other stages are received right before the work that reads them, and what
    other stages read is sent right behind the work that makes it.

    lines: where each entry of each stage stands, if anywhere. Every chunk has to have a stage.
    in_order: a stage receives the messages of another one in the order in which they are sent, some of them earlier
    than it reads them.
    """
    channels = _Channels(schedule, in_order)
    programs: list[list[Event]] = []
    chunks = schedule.chunks
    for stage, entries in enumerate(schedule.entries):
        events: list[Event] = []
        for place, entry in enumerate(entries):
            line = lines[stage][place] if lines else None
            parts = parts_of(entry)
            read = [value for part in parts for value in reads(part, chunks)]
            for source, value in channels.received(read, stage):
                events.append(Receive(source, *name_of(value), location=line))
            made = [value for part in parts for value in makes(part)]
            events.append(Work(str(entry), tuple(map(name_of, read)), tuple(map(name_of, made)), line))
            for target, value in channels.sent(entry, stage):
                events.append(Send(target, *name_of(value), location=line))
        programs.append(events)
    return programs


class _Channels:
    """Which messages stages receive before they read them, and send behind what makes them."""

    def __init__(self, schedule: Schedule, in_order: bool) -> None:
        self.schedule, self.in_order = schedule, in_order
        self.left: dict[tuple[int, int], deque[Made]] = {}
        """The messages from one stage to another, in the order in which they are sent, that are not received yet."""
        for stage, entries in enumerate(schedule.entries):
            for entry in entries:
                for target, value in self.sent(entry, stage):
                    self.left.setdefault((stage, target), deque()).append(value)
        self.there: set[tuple[int, Made]] = set()

    def sent(self, entry: Entry, stage: int) -> Iterator[tuple[int, Made]]:
        """What a stage sends behind an entry, each with the stage that it goes to."""
        for part in parts_of(entry):
            handed = handed_on(part, self.schedule.chunks)
            if handed is not None and self.schedule.placement[handed[1]] != stage:
                yield self.schedule.placement[handed[1]], handed[0]

    def received(self, read: Sequence[Made], stage: int) -> Iterator[tuple[int, Made]]:
        """What a stage receives before it reads values, each with the stage that it comes from."""
        for value in read:
            source = self.schedule.placement[value[1]]
            if source == stage:
                continue
            if not self.in_order:
                yield source, value
                continue
            left = self.left.get((source, stage), deque())
            while left and (stage, value) not in self.there:
                self.there.add((stage, left[0]))
                yield source, left.popleft()


_NAMES = {FORWARD: "activation", INPUT_GRADIENT: "gradient", WEIGHT_GRADIENT: "weights' gradient"}


def name_of(value: Made) -> Value:
    """What a value is called, and its micro-batch."""
    return f"{_NAMES[value[0]]} of chunk {value[1]}", value[2]
