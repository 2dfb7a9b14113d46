"""Where something of the user's fails over a row, the error names the row, where it comes from, and the user's line."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import raising_location
from mspc.ir.diagnostics import KINDS, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Location


@dataclass(frozen=True)
class RowFault:
    """A step of a pipeline. step: its name. location: where the user wrote it."""

    step: str
    location: Location | None

    def error(self, error: Exception, what: str, row: int, place: str = "") -> MspcError:
        """The error to raise for one that `what` raised over a row."""
        said = error.message if isinstance(error, MspcError) else f"{type(error).__name__}: {error}".rstrip(": ")
        inner = raising_location(error) or self.location
        notes = list(error.notes) if isinstance(error, MspcError) else []
        if self.location is not None and inner != self.location:
            notes.append(f"{self.step} is called at {self.location}")
        kind = next((kind for kind in KINDS if isinstance(error, kind)), RuntimeError)
        origin = f", {place}" if place else ""
        return MspcError(f"{self.step}: {what} fails at row {row}{origin}: {said}", inner, notes, kind=kind)


def name_of(function: Any) -> str:
    """How messages name an operation or a function."""
    name = getattr(function, "__qualname__", "") or type(function).__name__
    return "the lambda" if name.endswith("<lambda>") else name.rpartition("<locals>.")[2]
