"""A location is a position in the source: the place in the user's program from which a value comes."""

from __future__ import annotations

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """One span of a source file.

    `line` counts from 1; `column` and `end_column` count characters from 1, the end exclusive (0: unknown).
    `text` is the source line without its newline.
    """

    file: str
    line: int
    column: int = 0
    end_column: int = 0
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


Frames = tuple[Location, ...]
"""A call stack, the innermost frame first: the line of the operator, then the line that called it, and so on."""
