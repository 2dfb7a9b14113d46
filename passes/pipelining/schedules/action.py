"""A schedule is data: for every stage of a pipeline the order of what it does to which micro-batch.

Chunks are what stages run in one go, numbered as values flow: with v chunks on each of p stages there are p v of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mspc.ir.late_dataclass import dataclass

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "F", "B", "I", "W"
KINDS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT_GRADIENT: "gradient for inputs",
    WEIGHT_GRADIENT: "gradient for weights",
}
"""What an action may be, and how it is called. A backward is both gradients in one go."""
GRADIENTS = (BACKWARD, INPUT_GRADIENT)
"""The kinds that hand a gradient on to the chunk before."""
RELEASES = (BACKWARD, WEIGHT_GRADIENT)
"""The kinds that need what forward has kept for the last time."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a stage does in one go. kind: one of KINDS. chunk, micro_batch: numbers from 0."""

    kind: str
    chunk: int
    micro_batch: int

    def __str__(self) -> str:
        """As tables have it: `3F0` is the forward of chunk 3 on micro-batch 0."""
        return f"{self.chunk}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A forward and a backward of one stage that run at once, so that one's messages pass during the other's work."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Entry = Action | Overlapped
"""What stands in the order of a stage."""


def parts_of(entry: Entry) -> tuple[Action, ...]:
    """The actions of an entry, which begin and end together."""
    return (entry.forward, entry.backward) if isinstance(entry, Overlapped) else (entry,)


def actions_of(entries: tuple[Entry, ...]) -> Iterator[Action]:
    """The actions of a stage one by one, those that overlap one behind the other."""
    for entry in entries:
        yield from parts_of(entry)


@dataclass(frozen=True)
class Schedule:
    """The order of work of every stage.

    name: as users write it; of a table, its file. micro_batches: how many, at least 1. placement: the stage of every
    chunk. entries: for every stage what it does, in order.
    """

    name: str
    micro_batches: int
    placement: tuple[int, ...]
    entries: tuple[tuple[Entry, ...], ...]

    @property
    def stages(self) -> int:
        return len(self.entries)

    @property
    def chunks(self) -> int:
        """Those of all stages together."""
        return len(self.placement)

    def chunks_of(self, stage: int) -> list[int]:
        """The chunks that a stage has, in order."""
        return [chunk for chunk, place in enumerate(self.placement) if place == stage]
