"""These are the failures of a run that know their node, the silent one of a rank for which another reports, and what a
rank announces to do together with others, for the message if they never come."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mspc.ir.diagnostics import ExecutionError, Frames, shown
from mspc.ir.graph import Graph, Node


class NodeFailure(ExecutionError):
    """A node failed, or made a value that is not finite; `index` is its place in the run order (-1: none), of the
    region of this name where there is one."""

    def __init__(
        self, message: str, notes: Iterable[str] = (), frames: Frames = (), index: int = -1, region: str = ""
    ) -> None:
        super().__init__(message, notes=notes, frames=frames)
        self.index = index
        self.region = region

    def at(self, frames: Frames) -> NodeFailure:
        """The same failure with the source lines of its node."""
        return NodeFailure(self.message, self.notes, frames, self.index, self.region)


class RegionFailure(Exception):
    """A node inside of a region failed, on its way to the executor, which knows rank and step.

    turns: of the loops around the node, the innermost first: what the loop is called, and which turn it was, from 0.
    """

    def __init__(self, graph: Graph, index: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.region = graph.name
        self.index = index
        self.node: Node = graph.nodes[index]
        self.cause = cause
        self.turns: list[tuple[str, int]] = []

    @property
    def where(self) -> str:
        """The turns, for the middle of a message."""
        return "".join(f" in turn {turn} of {loop}" for loop, turn in self.turns)


class StoppedByOther(ExecutionError):
    """Another rank reports the failure; this one only ends."""


def missed(rank: int, said: str, other: int, where: str, frames: Frames = ()) -> ExecutionError:
    """The error of a rank that waits for one that is elsewhere. said: what that rank does and where, then a note a
    line. frames: of its node."""
    what, *notes = said.split("\n")
    return ExecutionError(f"rank {rank} {what}, but rank {other} {where}", notes=notes, frames=frames)


def first_line(said: str) -> str:
    return said.partition("\n")[0]


def tell(text: str) -> None:
    """Print to stderr at once, whatever state the process is in."""
    data = (shown(text.rstrip("\n"), lines=True) + "\n").encode(errors="replace")
    try:
        os.write(2, data)
    except OSError:
        pass
