"""Checks of a pipeline's schedule: every action is there once, and no stage waits forever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field

from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Location
from mspc.ir.nearest import did_you_mean
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Entry,
    Made,
    Schedule,
    handed_on,
    makes,
    parts_of,
    reads,
)

MISSING, DOUBLED, UNKNOWN, WRONG_STAGE = "missing", "doubled", "unknown", "wrong stage"
"""Of actions: one is not there, or twice; there is no such kind, chunk or micro-batch; another stage has the chunk."""
TOO_EARLY = "too early"
"""A value is read before it is there."""
CYCLE = "cycle"
"""Stages wait for each other."""
NO_PARTNER, SAME_KEY, OTHER_ORDER, OTHER_SIZE = "no partner", "same key", "other order", "other size"
"""Of messages: one side alone has it; two could change places; both sides have them in different orders, or in
different sizes."""


@dataclass(frozen=True)
class ScheduleProblem:
    """One problem. kind: one of the above. location: the line of one side. notes: the other sides, with their lines."""

    kind: str
    message: str
    location: Location | None = None
    notes: tuple[str, ...] = ()

    def error(self) -> MspcError:
        """As a mistake of the user."""
        return MspcError(self.message, self.location, self.notes, kind=ValueError)


def at(text: str, location: Location | None) -> str:
    """Return a note on something at a place; without the place if it is unknown."""
    return f"{text}, at {location}" if location else text


Lines = Sequence[Sequence[Location]]
"""If each entry of each stage is."""
Place = tuple[int, Location | None]
"""A stage, and a line of it."""


def incompleteness(schedule: Schedule, lines: Lines | None = None) -> list[ScheduleProblem]:
    """Actions that are missing, doubled, of no chunk or micro-batch that there is, or on another stage than the chunk.

    Every micro-batch needs on every chunk one forward, and either one backward or both gradients by themselves.
    """
    found: list[ScheduleProblem] = []
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


def _misplaced(schedule: Schedule, action: Action, stage: int, line: Location | None) -> Iterator[ScheduleProblem]:
    if action.kind not in KINDS:
        notes = (*did_you_mean(action.kind, KINDS), f"there are {', '.join(f'{k} ({v})' for k, v in KINDS.items())}")
        yield ScheduleProblem(UNKNOWN, f"stage {stage}: there is no kind of action {action.kind!r}", line, notes)
    elif not 0 <= action.chunk < schedule.chunks:
        note = f"there are chunks 0 to {schedule.chunks - 1}"
        yield ScheduleProblem(UNKNOWN, f"stage {stage}: {told(action)} is of no chunk that there is", line, (note,))
    elif not 0 <= action.micro_batch < schedule.micro_batches:
        note = f"there are micro-batches 0 to {schedule.micro_batches - 1}"
        yield ScheduleProblem(
            UNKNOWN, f"stage {stage}: {told(action)} is of no micro-batch that there is", line, (note,)
        )
    elif schedule.placement[action.chunk] != stage:
        message = f"{told(action)} is on stage {stage}, but its chunk is on stage {schedule.placement[action.chunk]}"
        yield ScheduleProblem(WRONG_STAGE, message, line)


def _doubled(message: str, place: Place, other: Place, action: Action) -> ScheduleProblem:
    stage, line = place
    return ScheduleProblem(DOUBLED, f"stage {stage}: {message}", line, (at(f"{action} on stage {other[0]}", other[1]),))


def _missing(schedule: Schedule, seen: dict[Action, Place], lines: Lines | None) -> Iterator[ScheduleProblem]:
    for chunk, stage in enumerate(schedule.placement):
        end = lines[stage][-1] if lines and lines[stage] else None
        for number in range(schedule.micro_batches):
            forward, backward, for_inputs, for_weights = (
                Action(kind, chunk, number) for kind in (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
            )
            apart = [action for action in (for_inputs, for_weights) if action in seen]
            if forward not in seen:
                yield ScheduleProblem(MISSING, f"stage {stage}: {told(forward)} is missing", end)
            if backward in seen:
                for action in apart:
                    why = f"{told(action)} is there beside the backward, which is both gradients"
                    yield _doubled(why, seen[action], seen[backward], backward)
            elif not apart:
                yield ScheduleProblem(
                    MISSING, f"stage {stage}: {told(backward)} is missing, or both gradients apart", end
                )
            elif len(apart) == 1:
                other = for_weights if apart == [for_inputs] else for_inputs
                notes = (at(f"{apart[0]} on stage {seen[apart[0]][0]}", seen[apart[0]][1]),)
                yield ScheduleProblem(MISSING, f"stage {stage}: {told(other)} is missing", end, notes)


Value = tuple[str, int]
"""The name of a tensor, and its micro-batch."""


@dataclass(frozen=True, slots=True)
class WorkEvent:
    """Computation. name: for messages. reads, makes: the values that there must be before it, and are after it."""

    name: str
    reads: tuple[Value, ...] = ()
    makes: tuple[Value, ...] = ()
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class SendEvent:
    """A value is sent to another stage. nbytes: of the message; 0 if it is not known."""

    target: int
    tensor: str
    micro_batch: int
    nbytes: int = 0
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class ReceiveEvent:
    """A value comes from another stage, and is there after this. nbytes: as of SendEvent."""

    source: int
    tensor: str
    micro_batch: int
    nbytes: int = 0
    location: Location | None = None


Event = WorkEvent | SendEvent | ReceiveEvent


def programs_of(
    schedule: Schedule, lines: Sequence[Sequence[Location]] | None = None, *, in_order: bool = False
) -> list[list[Event]]:
    """Return the events of every stage: a stage receives a value of another one right before the work that reads it,
    and sends a value right after the work that makes it.

    lines: the place of each entry of each stage, if known. Every chunk has to have a stage. in_order: a stage receives
    the messages of another one in the order in which they are sent, some of them earlier than it reads them.
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
                events.append(ReceiveEvent(source, *name_of(value), location=line))
            made = [value for part in parts for value in makes(part)]
            events.append(WorkEvent(str(entry), tuple(map(name_of, read)), tuple(map(name_of, made)), line))
            for target, value in channels.sent(entry, stage):
                events.append(SendEvent(target, *name_of(value), location=line))
        programs.append(events)
    return programs


class _Channels:
    """The messages that stages receive before they read them, and send after the work that makes them."""

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
        """Yield the values that a stage sends after an entry, each with its target stage."""
        for part in parts_of(entry):
            handed = handed_on(part, self.schedule.chunks)
            if handed is not None and self.schedule.placement[handed[1]] != stage:
                yield self.schedule.placement[handed[1]], handed[0]

    def received(self, read: Sequence[Made], stage: int) -> Iterator[tuple[int, Made]]:
        """Yield the values that a stage receives before it reads them, each with its source stage."""
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
    """Return the name of a value and its micro-batch."""
    return f"{_NAMES[value[0]]} of chunk {value[1]}", value[2]


# The walk finds messages without a partner, two that could change places, different orders or sizes on both sides,
# values that are read before they are there, and stages that wait for each other. Its time is linear in the events.


Programs = Sequence[Sequence[Event]]
Key = tuple[int, int, str, int]
"""A message by the stages that it goes from and to, its tensor and its micro-batch."""


def check(programs: Programs, *, sends_wait: bool = False, in_order: bool = True) -> list[ScheduleProblem]:
    """Return the problems of the programs of all stages; none if they run to their end.

    sends_wait: a send lasts until its receiver has come to it, as it may if nothing takes messages in between;
    otherwise it returns at once. in_order: from one stage to another messages arrive in the order in which they were
    sent, whatever their tensors are; otherwise a receiver finds its own by tensor and micro-batch. A first WorkEvent
    has to make the values that a program is given from outside.
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
    """Raise MspcError with all that `check` finds."""
    raise_all([problem.error() for problem in check(programs, sends_wait=sends_wait, in_order=in_order)])


def key_of(stage: int, event: SendEvent | ReceiveEvent) -> Key:
    """The message of an event of a stage."""
    if isinstance(event, SendEvent):
        return stage, event.target, event.tensor, event.micro_batch
    return event.source, stage, event.tensor, event.micro_batch


def _shown(value: Value) -> str:
    return f"{value[0]!r} of micro-batch {value[1]}"


def _told(stage: int, event: Event) -> str:
    match event:
        case WorkEvent():
            return f"stage {stage} runs {event.name}"
        case SendEvent():
            return f"stage {stage} sends {_shown((event.tensor, event.micro_batch))} to stage {event.target}"
        case ReceiveEvent():
            return f"stage {stage} receives {_shown((event.tensor, event.micro_batch))} from stage {event.source}"


@dataclass
class _Sides:
    """The events of one message: as it should be, one of each."""

    sends: list[SendEvent] = field(default_factory=list[SendEvent])
    receives: list[ReceiveEvent] = field(default_factory=list[ReceiveEvent])


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
                if isinstance(event, WorkEvent):
                    continue
                key = key_of(stage, event)
                sides = self.sides.setdefault(key, _Sides())
                if isinstance(event, SendEvent):
                    sides.sends.append(event)
                    self.sent.setdefault(key[:2], []).append(key)
                else:
                    sides.receives.append(event)
                    self.received.setdefault(key[:2], []).append(key)

    def is_whole(self, key: Key) -> bool:
        """Return whether a message has one side of each, so that it comes."""
        sides = self.sides[key]
        return len(sides.sends) == len(sides.receives) == 1 and key[0] != key[1]

    def problems(self) -> Iterator[ScheduleProblem]:
        for key, sides in self.sides.items():
            source, target, *_ = key
            first = (sides.sends or sides.receives)[0]
            told = _told(source if sides.sends else target, first)
            if source == target:
                yield ScheduleProblem(NO_PARTNER, f"{told}, which is itself", first.location)
            elif not 0 <= (target if sides.sends else source) < self.stages:
                yield ScheduleProblem(
                    NO_PARTNER, f"{told}, but there are stages 0 to {self.stages - 1}", first.location
                )
            elif not sides.receives:
                yield ScheduleProblem(NO_PARTNER, f"{told}, which does not receive it", first.location)
            elif not sides.sends:
                yield ScheduleProblem(NO_PARTNER, f"{told}, which does not send it", first.location)
            elif len(sides.sends) > 1 or len(sides.receives) > 1:
                yield from self._alike(key, sides)
            elif sides.receives[0].nbytes and first.nbytes and first.nbytes != sides.receives[0].nbytes:
                other = sides.receives[0]
                note = at(f"{_told(target, other)} in {other.nbytes} bytes", other.location)
                yield ScheduleProblem(OTHER_SIZE, f"{told} in {first.nbytes} bytes", first.location, (note,))

    def _alike(self, key: Key, sides: _Sides) -> Iterator[ScheduleProblem]:
        source, target, tensor, number = key
        counts = f"sends it {len(sides.sends)} times, and stage {target} receives it {len(sides.receives)} times"
        message = f"messages of {_shown((tensor, number))} could change places: stage {source} {counts}"
        events = [(source, event) for event in sides.sends] + [(target, event) for event in sides.receives]
        notes = tuple(at(_told(stage, event), event.location) for stage, event in events[1:])
        yield ScheduleProblem(SAME_KEY, message, events[0][1].location, notes)

    def orders(self) -> Iterator[ScheduleProblem]:
        """If the two sides of a pair of stages have messages in different orders, for each pair the first place."""
        for pair, sent in self.sent.items():
            sent = [key for key in sent if self.is_whole(key)]
            received = [key for key in self.received.get(pair, ()) if self.is_whole(key)]
            for ours, theirs in zip(sent, received, strict=True):
                if ours != theirs:
                    send, receive = self.sides[ours].sends[0], self.sides[theirs].receives[0]
                    message = f"{_told(pair[0], send)} where that stage receives {_shown(theirs[2:])}"
                    note = at(f"{_told(pair[1], receive)} as its next message from there", receive.location)
                    yield ScheduleProblem(OTHER_ORDER, message, send.location, (note,))
                    break


def _too_early(stage: int, program: Sequence[Event]) -> Iterator[ScheduleProblem]:
    last: dict[Value, int] = {}
    for place, event in enumerate(program):
        for value in _made(event):
            last.setdefault(value, place)
    for place, event in enumerate(program):
        for value in _read(event):
            comes = last.get(value)
            if comes is None:
                message = f"{_told(stage, event)}, but {_shown(value)} is never there"
                yield ScheduleProblem(TOO_EARLY, message, event.location)
            elif comes >= place:
                maker = program[comes]
                message = f"{_told(stage, event)} before {_shown(value)} is there"
                yield ScheduleProblem(TOO_EARLY, message, event.location, (at(_told(stage, maker), maker.location),))


def _made(event: Event) -> tuple[Value, ...]:
    match event:
        case WorkEvent():
            return event.makes
        case ReceiveEvent():
            return ((event.tensor, event.micro_batch),)
        case SendEvent():
            return ()


def _read(event: Event) -> tuple[Value, ...]:
    match event:
        case WorkEvent():
            return event.reads
        case SendEvent():
            return ((event.tensor, event.micro_batch),)
        case ReceiveEvent():
            return ()


class _Walk:
    """Runs all programs, each until it waits for something that does not come."""

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
        """Run a stage as far as it goes, and return the stages that go on because of it."""
        released: list[int] = []
        program = self.programs[stage]
        while self.places[stage] < len(program):
            event = program[self.places[stage]]
            if not isinstance(event, WorkEvent):
                key = key_of(stage, event)
                if not self._passes(key, isinstance(event, SendEvent)):
                    self.waiting[key] = stage
                    break
                other = self.waiting.pop(key, None)
                if other is not None:
                    self.places[other] += 1
                    released.append(other)
            self.places[stage] += 1
        return released

    def _passes(self, key: Key, is_send: bool) -> bool:
        """Return whether a message no longer blocks its stage. One that is not whole was reported, and blocks
        nobody."""
        if not self.messages.is_whole(key) or key in self.waiting:
            return True
        if is_send and not self.sends_wait:
            self.sent.add(key)
            return True
        return not is_send and key in self.sent

    def cycles(self) -> Iterator[ScheduleProblem]:
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

    def _told(self, chain: list[int]) -> ScheduleProblem:
        events = [(stage, self.programs[stage][self.places[stage]]) for stage in chain]
        who = " and ".join(filter(None, (", ".join(map(str, chain[:-1])), str(chain[-1]))))
        why = " where a send waits for its receiver" if self.sends_wait else ""
        notes: list[str] = []
        for (stage, event), other in zip(events, (*chain[1:], chain[0]), strict=True):
            does = "receives" if isinstance(event, SendEvent) else "sends"
            notes.append(at(f"{_told(stage, event)}, and stage {other} {does} it later", event.location))
        return ScheduleProblem(CYCLE, f"stages {who} wait for each other{why}", events[0][1].location, tuple(notes))


def check_schedule(schedule: Schedule, lines: Lines | None = None) -> list[ScheduleProblem]:
    """Return the problems of a schedule; none if it runs to its end.

    Messages are found by tensor and micro-batch, and sends return at once; `check` proves the messages of the graphs
    that the schedule makes. Orders are looked at if all actions are there. lines: the place of each entry of each
    stage, if known.
    """
    found = incompleteness(schedule, lines)
    return found or check(programs_of(schedule, lines), in_order=False)


def require_schedule(schedule: Schedule, lines: Lines | None = None) -> None:
    """Raise MspcError with all that `check_schedule` finds."""
    raise_all([problem.error() for problem in check_schedule(schedule, lines)])
