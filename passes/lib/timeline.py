"""The timeline of a pipeline's actions: idle time, values stored for backwards, and copies to the host; and the
checks of a schedule."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

from mspc.ir.diagnostics import Location, MspcError, did_you_mean, raise_all
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INPUT_GRADIENT,
    KINDS,
    RELEASES,
    WEIGHT_GRADIENT,
    Action,
    Made,
    Schedule,
    makes,
    reads,
)

# Each stage takes its actions in their order, each as soon as its operands are there. Messages pass beside the work.
# Updates of a stage after its last action may wait for values that other stages send after theirs. Values stored by
# forwards may leave for the host meanwhile. Times are in any one unit, seconds in a compile.


Durations = Mapping[tuple[int, str], float]
"""The time of each kind of action on each chunk; of a backward by default the sum of both gradients."""
Messages = float | Mapping[tuple[int, int], float]
"""The time of a message between two stages: of any, or by the chunks that send and read it; 0 of those left out."""
Awaited = Mapping[int, Collection[tuple[int, Action | None]]]
"""For stages, the others that send them values after their own last actions, each with the action after which it does;
None for its last one."""


@dataclass(frozen=True, slots=True)
class Span:
    """An action of a stage, and its time. awaited: the value for which the stage has waited before it, None if it has
    not."""

    action: Action
    start: float
    end: float
    awaited: Made | None = None


@dataclass(frozen=True, slots=True)
class StepTail:
    """The work of a stage after its last action, and its time."""

    start: float
    end: float


@dataclass(frozen=True)
class ScheduleTimeline:
    """A schedule with the time of every action of every stage, from 0 on. tails: of the stages that have one."""

    schedule: Schedule
    spans: tuple[tuple[Span, ...], ...]
    tails: Mapping[int, StepTail] = field(default_factory=dict[int, StepTail])

    def end(self, stage: int) -> float:
        """When a stage has done all."""
        spans = self.spans[stage]
        return self.tails[stage].end if stage in self.tails else spans[-1].end if spans else 0

    @property
    def makespan(self) -> float:
        """The time until the last stage has ended: of a step, if all stages wait for each other after it."""
        return max(map(self.end, range(len(self.spans))), default=0)

    @property
    def period(self) -> float:
        """The longest time of one stage from its first start to its last end: of a step, if each stage begins the next
        one by itself (ZB-2P and ZB-V, with the optimizer's check postponed)."""
        return max((self.end(stage) - spans[0].start for stage, spans in enumerate(self.spans) if spans), default=0)

    def busy(self, stage: int) -> float:
        """Return the time in which a stage works."""
        tail = self.tails.get(stage, StepTail(0, 0))
        return sum(span.end - span.start for span in self.spans[stage]) + tail.end - tail.start

    def idle(self, stage: int, *, postponed: bool = False) -> float:
        """Return the time of a step in which a stage does not work. postponed: a step takes its period, not its
        makespan."""
        return max(0, (self.period if postponed else self.makespan) - self.busy(stage))  # sums are rounded

    def idle_share(self, stage: int, *, postponed: bool = False) -> float:
        """Return the part of a step in which a stage does not work, 0 to 1."""
        step = self.period if postponed else self.makespan
        return self.idle(stage, postponed=postponed) / step if step else 0.0

    def kept(self, stage: int) -> int:
        """Return the most micro-batches of chunks that a stage stores at once, each from its forward's start to the end
        of the last gradient that reads its stored values."""
        return int(self.kept_bytes(stage, [1] * self.schedule.chunks))

    def kept_bytes(self, stage: int, bytes_of_chunk: Sequence[float]) -> float:
        """Return the most bytes that a stage stores at once: a forward adds its bytes at its start, a gradient releases
        them at its end. bytes_of_chunk: those of one micro-batch of each chunk."""
        most = kept = 0.0
        for span in self.spans[stage]:
            kept += bytes_of_chunk[span.action.chunk] * (span.action.kind == FORWARD)
            most = max(most, kept)
            kept -= bytes_of_chunk[span.action.chunk] * (span.action.kind in RELEASES)
        return most


def equal_durations(
    schedule: Schedule, forward: float = 1, input_gradient: float = 1, weight_gradient: float = 1
) -> Durations:
    """Return the same times for all chunks."""
    times = {FORWARD: forward, INPUT_GRADIENT: input_gradient, WEIGHT_GRADIENT: weight_gradient}
    return {(chunk, kind): time for chunk in range(schedule.chunks) for kind, time in times.items()}


def timeline(
    schedule: Schedule, durations: Durations, message: Messages = 0,
    behind: Mapping[int, float] | None = None, awaited: Awaited | None = None,
    copies: Copies | None = None,
) -> ScheduleTimeline:  # fmt: skip
    """Return the times of a schedule.

    behind: seconds of stages after their last actions. awaited: the values needed before that. copies: of stored
    values, to the host and back, or None.

    Raise MspcError if the schedule does not run to its end.
    """
    walk = _Walk(schedule, durations, message, HostPace(copies or {}))
    if any(len(spans) < len(entries) for spans, entries in zip(walk.spans, schedule.entries, strict=True)):
        require_schedule(schedule)
        raise AssertionError(f"the schedule {schedule.name!r} has come to a stop")
    made = ScheduleTimeline(schedule, tuple(map(tuple, walk.spans)))
    tails: dict[int, StepTail] = {}
    for stage, time in (behind or {}).items():
        start = max([made.end(stage), *(_send_time(made, *each) for each in (awaited or {}).get(stage, ()))])
        tails[stage] = StepTail(start, start + time)
    return ScheduleTimeline(schedule, made.spans, tails)


def _send_time(line: ScheduleTimeline, stage: int, behind: Action | None) -> float:
    """Return the time at which a stage sends values after their last actions."""
    if behind is None:
        return line.end(stage)
    made = set(makes(behind))
    ends = (span.end for span in line.spans[stage] if made <= set(makes(span.action)))
    return next(ends, line.end(stage))


class _Walk:
    """The clocks of all stages, which have run as far as they go."""

    def __init__(self, schedule: Schedule, durations: Durations, message: Messages, pace: HostPace) -> None:
        self.pace = pace
        self.schedule, self.durations, self.message = schedule, durations, message
        self.there: dict[Made, tuple[float, int]] = {}
        """When each value has been made, and on which stage."""
        self.waiting: dict[Made, list[int]] = {}
        self.spans: list[list[Span]] = [[] for _ in schedule.entries]
        running = list(range(schedule.stages))
        while running:
            running += self._run(running.pop())

    def _run(self, stage: int) -> list[int]:
        """Run a stage until it waits for a value that is not there yet, and return the stages that go on because of
        it."""
        released: list[int] = []
        spans = self.spans[stage]
        for action in self.schedule.entries[stage][len(spans) :]:
            start, awaited = spans[-1].end if spans else 0, None
            for value in reads(action, self.schedule.chunks):
                if value not in self.there:
                    self.waiting.setdefault(value, []).append(stage)
                    return released
                made, source = self.there[value]
                comes = made if source == stage else made + self._message(value, action)
                if comes > start:
                    start, awaited = comes, value
            start = self.pace.begin(stage, action, start)
            spans.append(Span(action, start, start + self._time(action.chunk, action.kind), awaited))
            self.pace.ran(stage, action, spans[-1].end)
            for value in makes(action):
                self.there[value] = spans[-1].end, stage
                released += self.waiting.pop(value, ())
        return released

    def _message(self, value: Made, reader: Action) -> float:
        if isinstance(self.message, Mapping):
            return self.message.get((value[1], reader.chunk), 0)
        return self.message

    def _time(self, chunk: int, kind: str) -> float:
        if kind == BACKWARD and (chunk, kind) not in self.durations:
            return self.durations[chunk, INPUT_GRADIENT] + self.durations[chunk, WEIGHT_GRADIENT]
        return self.durations[chunk, kind]


# Stored values leave after their forwards, and come back before their gradients. Copies one way run one after another,
# beside the work of their stage; if the program of a stage waits for one, its next work begins later.


AT_ONCE = 2
"""Forwards of which values are on the device if those leave as early as may be: of one that runs, and of the one whose
values leave meanwhile."""
AHEAD = 3
"""Values come back this many gradients early if nothing waits for those that leave."""
Task = tuple[str, int, int]
"""Work on a micro-batch: its kind, its chunk, and the micro-batch."""
Copied = tuple[int, int, int]
"""Values that are copied together: the chunk that has made them, the micro-batch, and a number."""


@dataclass
class TaskCopies:
    """The copies of one task. ahead: those that come back from an earlier place on, with their seconds, and those that
    have left before the program goes on, with 0, in the order of the program. read: those that are back before it
    begins. left: those that leave after it, with their seconds."""

    ahead: list[tuple[Copied, float]] = field(default_factory=list["tuple[Copied, float]"])
    read: list[Copied] = field(default_factory=list[Copied])
    left: list[tuple[Copied, float]] = field(default_factory=list["tuple[Copied, float]"])

    def like(self, chunks: Mapping[int, int]) -> TaskCopies:
        """Return the same copies for other chunks, given by the chunks of these."""

        def of(copied: Copied) -> Copied:
            return (chunks[copied[0]], *copied[1:])

        return TaskCopies(
            [(of(each), time) for each, time in self.ahead], [*map(of, self.read)],
            [(of(each), time) for each, time in self.left],
        )  # fmt: skip


Copies = Mapping[Task, TaskCopies]


class HostPace:
    """The copies of all stages, which is reported of every action in the order of its stage."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._gone: dict[Copied, float] = {}
        self._back: dict[Copied, float] = {}
        self._out: dict[int, float] = {}
        self._in: dict[int, float] = {}
        """When the last copy of a stage to the host is over, and the last one from it."""
        self._worked: dict[int, float] = {}

    def begin(self, stage: int, action: Action, ready: float) -> float:
        """When an action begins that could at `ready` without copies."""
        reached = self._worked.get(stage, 0.0)
        for task in self._of(action):
            for each, time in task.ahead:
                if time:
                    self._back[each] = self._in[stage] = max(self._in.get(stage, 0.0), reached) + time
                else:
                    reached = max(reached, self._gone.get(each, 0.0))
            ready = max(ready, reached, *(self._back.get(each, 0.0) for each in task.read))
        return ready

    def ran(self, stage: int, action: Action, end: float) -> None:
        """Note that an action ended at `end`."""
        self._worked[stage] = end
        for task in self._of(action):
            for each, time in task.left:
                self._gone[each] = self._out[stage] = max(self._out.get(stage, 0.0), end) + time

    def _of(self, action: Action) -> Iterator[TaskCopies]:
        kinds = (BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT) if action.kind == BACKWARD else (action.kind,)
        for kind in kinds if self._copies else ():
            task = self._copies.get((kind, action.chunk, action.micro_batch))
            if task is not None:
                yield task


def leaving(schedule: Schedule, stage: int) -> Iterator[tuple[int, int]]:
    """Return (chunk, micro-batch) of the values that may leave: their gradients come after so many other forwards that
    it saves memory."""
    forwards = 0
    since: dict[tuple[int, int], int] = {}
    for action in schedule.entries[stage]:
        own = action.chunk, action.micro_batch
        if action.kind == FORWARD:
            forwards += 1
            since[own] = forwards
        elif action.kind in GRADIENTS and forwards - since[own] >= AT_ONCE:
            yield own


def copies_of(schedule: Schedule, stage: int, seconds: Mapping[int, float], waits: bool) -> dict[Task, TaskCopies]:
    """Return the copies of all values that may leave a stage.

    seconds: of each chunk's values, one way. waits: a forward waits until the values of all but the last one before it
    have left, and values come back from the gradient before their reader on; else nothing waits, and they come back
    some gradients early.
    """
    found: dict[Task, TaskCopies] = {}
    forwards: list[tuple[int, int]] = []
    gradients: list[TaskCopies] = []
    leaves = {*leaving(schedule, stage)}
    ahead = 1 if waits else AHEAD
    for action in schedule.entries[stage]:
        own = action.chunk, action.micro_batch
        task = found.setdefault((action.kind, *own), TaskCopies())
        copied = [((*own, 0), seconds.get(action.chunk, 0.0))] if own in leaves else []
        if action.kind == FORWARD:
            task.ahead += [((*each, 0), 0.0) for each in forwards[-AT_ONCE : 1 - AT_ONCE] if waits and each in leaves]
            task.left += copied
            forwards.append(own)
        elif action.kind in GRADIENTS:
            gradients.append(task)
            gradients[-1 - ahead :][0].ahead += copied
            task.read += [each for each, _ in copied]
    return found


# Checks of a pipeline's schedule ----------------------------------------------------------------------
# Every action is there once, and no stage waits forever.


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
