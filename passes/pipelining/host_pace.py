"""How copies to the host and back pace a stage: what forwards keep of a micro-batch leaves while later ones are worked on,
and comes back ahead of its gradient.

Copies one way come one behind another. A forward begins when what all forwards before it but the last have kept is gone,
so that the memory of a stage has room for two micro-batches on their way out, however many there are between forwards
and gradients; what a gradient reads begins to come back with the gradient before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mspc.passes.pipelining.schedules.action import FORWARD, GRADIENTS, Entry, Schedule, actions_of, parts_of

AT_ONCE = 2
"""Forwards of which what they keep is on the device: of one that runs, and of the one whose values leave meanwhile."""
Copies = Mapping[tuple[int, int], float]
"""The time in which what the forward of a chunk keeps of a micro-batch leaves, and that in which it comes back; 0 of
those left out, which stays."""


class HostPace:
    """The copies of all stages, which is told of every entry in the order of its stage."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._gone: dict[int, list[float]] = {}
        """When what forwards of a stage have kept is gone."""
        self._turned: dict[int, float] = {}
        """When a stage began its last gradient."""

    def begin(self, stage: int, entry: Entry, ready: float) -> float:
        """When an entry begins that could at `ready` without copies."""
        gone = self._gone.get(stage, [])
        for part in parts_of(entry) if self._copies else ():
            if part.kind == FORWARD and len(gone) >= AT_ONCE:
                ready = max(ready, gone[-AT_ONCE])
            elif part.kind in GRADIENTS and stage in self._turned:
                ready = max(ready, self._turned[stage] + self._copies.get((part.chunk, part.micro_batch), 0.0))
        return ready

    def ran(self, stage: int, entry: Entry, start: float, end: float) -> None:
        """An entry has run from `start` to `end`."""
        for part in parts_of(entry) if self._copies else ():
            if part.kind == FORWARD:
                gone = self._gone.setdefault(stage, [])
                time = self._copies.get((part.chunk, part.micro_batch), 0.0)
                gone.append(max(end, gone[-1] if gone else 0.0) + time if time else gone[-1] if gone else 0.0)
            elif part.kind in GRADIENTS:
                self._turned[stage] = start


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
