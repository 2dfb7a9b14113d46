"""How copies to the host and back pace the stages of a pipeline: what forwards keep of micro-batches leaves, and comes
back ahead of its gradients. Copies one way run one behind another, beside the work of their stage; where the program of
a stage waits for one its next work begins later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from mspc.ir.late_dataclass import dataclass
from mspc.passes.pipelining.schedules.action import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Entry,
    Schedule,
    actions_of,
    parts_of,
)  # fmt: skip

AT_ONCE = 2
"""Forwards of which values are on the device where those leave as early as may be: of one that runs, and of the one
whose values leave meanwhile."""
AHEAD = 3
"""From so many gradients before on values come back where nothing waits for what leaves."""
Task = tuple[str, int, int]
"""Work on a micro-batch: its kind, its chunk, and the micro-batch."""
Copied = tuple[int, int, int]
"""Values that are copied together: the chunk that has made them, the micro-batch, and a number."""


@dataclass
class TaskCopies:
    """The copies of one task. ahead: those that come back from a place ahead of it on, with their seconds, and those
    that have left before the program goes on, with 0, in the order of the program. read: that have come back before it
    begins. left: that leave behind it, with their seconds."""

    ahead: list[tuple[Copied, float]] = field(default_factory=list["tuple[Copied, float]"])
    read: list[Copied] = field(default_factory=list[Copied])
    left: list[tuple[Copied, float]] = field(default_factory=list["tuple[Copied, float]"])

    def like(self, chunks: Mapping[int, int]) -> TaskCopies:
        """The same of other chunks, by those that these are of."""

        def of(copied: Copied) -> Copied:
            return (chunks[copied[0]], *copied[1:])

        return TaskCopies(
            [(of(each), time) for each, time in self.ahead], [*map(of, self.read)],
            [(of(each), time) for each, time in self.left],
        )  # fmt: skip


Copies = Mapping[Task, TaskCopies]


class HostPace:
    """The copies of all stages, which is told of every entry in the order of its stage."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._gone: dict[Copied, float] = {}
        self._back: dict[Copied, float] = {}
        self._out: dict[int, float] = {}
        self._in: dict[int, float] = {}
        """When the last copy of a stage to the host is over, and the last one from it."""
        self._worked: dict[int, float] = {}

    def begin(self, stage: int, entry: Entry, ready: float) -> float:
        """When an entry begins that could at `ready` without copies."""
        reached = self._worked.get(stage, 0.0)
        for task in self._of(entry):
            for each, time in task.ahead:
                if time:
                    self._back[each] = self._in[stage] = max(self._in.get(stage, 0.0), reached) + time
                else:
                    reached = max(reached, self._gone.get(each, 0.0))
            ready = max(ready, reached, *(self._back.get(each, 0.0) for each in task.read))
        return ready

    def ran(self, stage: int, entry: Entry, end: float) -> None:
        """An entry has run up to `end`."""
        self._worked[stage] = end
        for task in self._of(entry):
            for each, time in task.left:
                self._gone[each] = self._out[stage] = max(self._out.get(stage, 0.0), end) + time

    def _of(self, entry: Entry) -> Iterator[TaskCopies]:
        for part in parts_of(entry) if self._copies else ():
            kinds = (BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT) if part.kind == BACKWARD else (part.kind,)
            for kind in kinds:
                task = self._copies.get((kind, part.chunk, part.micro_batch))
                if task is not None:
                    yield task


def leaving(schedule: Schedule, stage: int) -> Iterator[tuple[int, int]]:
    """(chunk, micro-batch) of what may leave: gradients come behind so many other forwards that room is spared."""
    forwards = 0
    since: dict[tuple[int, int], int] = {}
    for action in actions_of(schedule.entries[stage]):
        own = action.chunk, action.micro_batch
        if action.kind == FORWARD:
            forwards += 1
            since[own] = forwards
        elif action.kind in GRADIENTS and forwards - since[own] >= AT_ONCE:
            yield own


def copies_of(
    schedule: Schedule, stage: int, seconds: Mapping[int, float], waits: bool
) -> dict[Task, TaskCopies]:  # fmt: skip
    """Copies of all that may leave a stage. seconds: of what each chunk keeps, one way. waits: a forward does, until
    what all but the last one before it have kept has left, and what a gradient reads comes back from the gradient
    before on; else nothing does, and it comes back from some gradients before on."""
    found: dict[Task, TaskCopies] = {}
    forwards: list[tuple[int, int]] = []
    gradients: list[TaskCopies] = []
    leaves = {*leaving(schedule, stage)}
    ahead = 1 if waits else AHEAD
    for action in actions_of(schedule.entries[stage]):
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
