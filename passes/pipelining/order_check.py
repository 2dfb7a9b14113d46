"""The proof that the programs of all stages run to their end, which are walked as orders of events before the run.

Found are messages without a partner, two that could change places, different orders or sizes on both sides, values that
are read before they are there, and stages that wait for each other. It takes time in proportion to the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from mspc.ir.diagnostics import raise_all
from mspc.ir.late_dataclass import dataclass
from mspc.passes.pipelining.schedules.events import Event, Receive, Send, Value, Work
from mspc.passes.pipelining.schedules.problem import (
    CYCLE,
    NO_PARTNER,
    OTHER_ORDER,
    OTHER_SIZE,
    SAME_KEY,
    TOO_EARLY,
    Problem,
    at,
)  # fmt: skip

Programs = Sequence[Sequence[Event]]
Key = tuple[int, int, str, int]
"""A message by the stages that it goes from and to, its tensor and its micro-batch."""


def check(programs: Programs, *, sends_wait: bool = False, in_order: bool = True) -> list[Problem]:
    """What is wrong with the programs of all stages, nothing where they run to their end.

    sends_wait: a send lasts until its receiver has come to it, as it may where nothing takes messages in between;
    otherwise it returns at once. in_order: from one stage to another messages arrive in the order in which they were
    sent, whatever their tensors are; otherwise a receiver finds its own by tensor and micro-batch.

    What a program is given from outside is to be made by a first Work.
    """
    messages = _Messages(programs)
    found = [*messages.problems()]
    if in_order:
        found += messages.orders()
    for stage, program in enumerate(programs):
        found += _too_early(stage, program)
    found += _Walk(programs, messages, sends_wait).cycles()
    return found


def require_order(programs: Programs, *, sends_wait: bool = False, in_order: bool = True) -> None:
    """Raises MspcError with all that `check` finds."""
    raise_all([problem.error() for problem in check(programs, sends_wait=sends_wait, in_order=in_order)])


def key_of(stage: int, event: Send | Receive) -> Key:
    """The message of an event of a stage."""
    if isinstance(event, Send):
        return stage, event.target, event.tensor, event.micro_batch
    return event.source, stage, event.tensor, event.micro_batch


def _shown(value: Value) -> str:
    return f"{value[0]!r} of micro-batch {value[1]}"


def _told(stage: int, event: Event) -> str:
    """An event as messages have it."""
    match event:
        case Work():
            return f"stage {stage} runs {event.name}"
        case Send():
            return f"stage {stage} sends {_shown((event.tensor, event.micro_batch))} to stage {event.target}"
        case Receive():
            return f"stage {stage} receives {_shown((event.tensor, event.micro_batch))} from stage {event.source}"


@dataclass
class _Sides:
    """The events of one message: as it should be, one of each."""

    sends: list[Send] = field(default_factory=list[Send])
    receives: list[Receive] = field(default_factory=list[Receive])


class _Messages:
    """All messages with both their sides."""

    def __init__(self, programs: Programs) -> None:
        self.stages = len(programs)
        self.sides: dict[Key, _Sides] = {}
        self.sent: dict[tuple[int, int], list[Key]] = {}
        self.received: dict[tuple[int, int], list[Key]] = {}
        """By the stages that they go from and to: messages in the order of either side."""
        for stage, program in enumerate(programs):
            for event in program:
                if isinstance(event, Work):
                    continue
                key = key_of(stage, event)
                sides = self.sides.setdefault(key, _Sides())
                if isinstance(event, Send):
                    sides.sends.append(event)
                    self.sent.setdefault(key[:2], []).append(key)
                else:
                    sides.receives.append(event)
                    self.received.setdefault(key[:2], []).append(key)

    def is_whole(self, key: Key) -> bool:
        """Whether a message has one side of each, so that it comes."""
        sides = self.sides[key]
        return len(sides.sends) == len(sides.receives) == 1 and key[0] != key[1]

    def problems(self) -> Iterator[Problem]:
        """What is wrong with messages one by one."""
        for key, sides in self.sides.items():
            source, target, *_ = key
            first = (sides.sends or sides.receives)[0]
            told = _told(source if sides.sends else target, first)
            if source == target:
                yield Problem(NO_PARTNER, f"{told}, which is itself", first.location)
            elif not 0 <= (target if sides.sends else source) < self.stages:
                yield Problem(NO_PARTNER, f"{told}, but there are stages 0 to {self.stages - 1}", first.location)
            elif not sides.receives:
                yield Problem(NO_PARTNER, f"{told}, which does not receive it", first.location)
            elif not sides.sends:
                yield Problem(NO_PARTNER, f"{told}, which does not send it", first.location)
            elif len(sides.sends) > 1 or len(sides.receives) > 1:
                yield from self._alike(key, sides)
            elif sides.receives[0].nbytes and first.nbytes and first.nbytes != sides.receives[0].nbytes:
                other = sides.receives[0]
                note = at(f"{_told(target, other)} in {other.nbytes} bytes", other.location)
                yield Problem(OTHER_SIZE, f"{told} in {first.nbytes} bytes", first.location, (note,))

    def _alike(self, key: Key, sides: _Sides) -> Iterator[Problem]:
        source, target, tensor, number = key
        counts = f"sends it {len(sides.sends)} times, and stage {target} receives it {len(sides.receives)} times"
        message = f"messages of {_shown((tensor, number))} could change places: stage {source} {counts}"
        events = [(source, event) for event in sides.sends] + [(target, event) for event in sides.receives]
        notes = tuple(at(_told(stage, event), event.location) for stage, event in events[1:])
        yield Problem(SAME_KEY, message, events[0][1].location, notes)

    def orders(self) -> Iterator[Problem]:
        """Where the two sides of a pair of stages have messages in different orders, for each pair the first place."""
        for pair, sent in self.sent.items():
            sent = [key for key in sent if self.is_whole(key)]
            received = [key for key in self.received.get(pair, ()) if self.is_whole(key)]
            for ours, theirs in zip(sent, received, strict=True):
                if ours != theirs:
                    send, receive = self.sides[ours].sends[0], self.sides[theirs].receives[0]
                    message = f"{_told(pair[0], send)} where that stage receives {_shown(theirs[2:])}"
                    note = at(f"{_told(pair[1], receive)} as its next message from there", receive.location)
                    yield Problem(OTHER_ORDER, message, send.location, (note,))
                    break


def _too_early(stage: int, program: Sequence[Event]) -> Iterator[Problem]:
    """Values that events of one stage read before they are there."""
    last: dict[Value, int] = {}
    for place, event in enumerate(program):
        for value in _made(event):
            last.setdefault(value, place)
    for place, event in enumerate(program):
        for value in _read(event):
            comes = last.get(value)
            if comes is None:
                message = f"{_told(stage, event)}, but {_shown(value)} is never there"
                yield Problem(TOO_EARLY, message, event.location)
            elif comes >= place:
                maker = program[comes]
                message = f"{_told(stage, event)} before {_shown(value)} is there"
                yield Problem(TOO_EARLY, message, event.location, (at(_told(stage, maker), maker.location),))


def _made(event: Event) -> tuple[Value, ...]:
    match event:
        case Work():
            return event.makes
        case Receive():
            return ((event.tensor, event.micro_batch),)
        case Send():
            return ()


def _read(event: Event) -> tuple[Value, ...]:
    match event:
        case Work():
            return event.reads
        case Send():
            return ((event.tensor, event.micro_batch),)
        case Receive():
            return ()


class _Walk:
    """All programs as they would run, each until it waits for what does not come."""

    def __init__(self, programs: Programs, messages: _Messages, sends_wait: bool) -> None:
        self.programs, self.messages, self.sends_wait = programs, messages, sends_wait
        self.places = [0] * len(programs)
        self.sent: set[Key] = set()
        self.waiting: dict[Key, int] = {}
        """Stages that have come to a message that the other side has not come to."""
        running = list(range(len(programs)))
        while running:
            running += self._run(running.pop())

    def _run(self, stage: int) -> list[int]:
        """Run a stage as far as it goes; the stages that go on because of it."""
        released: list[int] = []
        program = self.programs[stage]
        while self.places[stage] < len(program):
            event = program[self.places[stage]]
            if not isinstance(event, Work):
                key = key_of(stage, event)
                if not self._passes(key, isinstance(event, Send)):
                    self.waiting[key] = stage
                    break
                other = self.waiting.pop(key, None)
                if other is not None:
                    self.places[other] += 1
                    released.append(other)
            self.places[stage] += 1
        return released

    def _passes(self, key: Key, is_send: bool) -> bool:
        """Whether a message holds its stage up no more. One that is not whole has been told, and holds nobody up."""
        if not self.messages.is_whole(key) or key in self.waiting:
            return True
        if is_send and not self.sends_wait:
            self.sent.add(key)
            return True
        return not is_send and key in self.sent

    def cycles(self) -> Iterator[Problem]:
        """Circles of stages that wait for each other."""
        partner = {stage: key[1] if key[0] == stage else key[0] for key, stage in self.waiting.items()}
        seen: set[int] = set()
        for stage in sorted(partner):
            chain: list[int] = []
            while stage in partner and stage not in seen:
                seen.add(stage)
                chain.append(stage)
                stage = partner[stage]
            if stage in chain:
                yield self._told(chain[chain.index(stage) :])

    def _told(self, chain: list[int]) -> Problem:
        events = [(stage, self.programs[stage][self.places[stage]]) for stage in chain]
        who = " and ".join(filter(None, (", ".join(map(str, chain[:-1])), str(chain[-1]))))
        why = " where a send waits for its receiver" if self.sends_wait else ""
        notes: list[str] = []
        for (stage, event), other in zip(events, (*chain[1:], chain[0]), strict=True):
            does = "receives" if isinstance(event, Send) else "sends"
            notes.append(at(f"{_told(stage, event)}, and stage {other} {does} it later", event.location))
        return Problem(CYCLE, f"stages {who} wait for each other{why}", events[0][1].location, tuple(notes))
