"""What is wrong with the order of a pipeline's work or of its messages."""

from __future__ import annotations

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Location

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
class Problem:
    """One problem. kind: one of the above. location: the line of one side. notes: the other sides, with their lines."""

    kind: str
    message: str
    location: Location | None = None
    notes: tuple[str, ...] = ()

    def error(self) -> MspcError:
        """As a mistake of the user."""
        return MspcError(self.message, self.location, self.notes, kind=ValueError)


def at(text: str, location: Location | None) -> str:
    """A note on what stands at a place; without the place where it is not known."""
    return f"{text}, at {location}" if location else text
