"""These are the failures of a run that know their node, and the silent one of a rank for which another reports."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.location import Frames


class NodeFailure(ExecutionError):
    """A node failed, or made a value that is not finite; `index` is its place in the run order (-1: none)."""

    def __init__(self, message: str, notes: Iterable[str] = (), frames: Frames = (), index: int = -1) -> None:
        super().__init__(message, notes=notes, frames=frames)
        self.index = index

    def at(self, frames: Frames) -> NodeFailure:
        """The same failure with the source lines of its node."""
        return NodeFailure(self.message, self.notes, frames, self.index)


class StoppedByOther(ExecutionError):
    """Another rank reports the failure; this one only ends."""
