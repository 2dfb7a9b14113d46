"""The one exception family. Every mistake of a user ends as an MspcError with a place and a remedy."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.ir.location import Frames, Location

OWN_FILES = "mspc/"
"""How the names of mspc's own files begin in call stacks."""


class MspcError(Exception):
    """A mistake in the user's program, command or file.

    Args:
        message: what is wrong: operator, instance name, input, dimension, value.
        location: the user's source span, when there is one.
        notes: what would be right, and further places; one line each.
        frames: the call stack, innermost first; `location` defaults to its first entry in a user's file.
    """

    exit_status = 2

    def __init__(
        self,
        message: str,
        location: Location | None = None,
        notes: Iterable[str] = (),
        frames: Frames = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        user = next((f for f in frames if not f.file.startswith(OWN_FILES)), frames[0] if frames else None)
        self.location = location or user
        self.notes = tuple(notes)
        self.frames = frames

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The whole text: `file:line:col: error: message`, the source line, carets, notes."""
        lines: list[str] = []
        where = self.location
        lines.append(f"{where}: error: {self.message}" if where else f"error: {self.message}")
        if where and where.text.strip():
            lines.append(f"    {where.text}")
            if where.column:
                width = max(1, min(where.end_column or where.column + 1, len(where.text) + 1) - where.column)
                pad = "".join("\t" if c == "\t" else " " for c in where.text[: where.column - 1])
                lines.append(f"    {pad}{'^' * width}")
        place = self.frames.index(where) if where in self.frames else 0
        lines += [f"  in {frame}: {frame.text.strip()}" for frame in reversed(self.frames[:place])]
        lines += [f"  called from {frame}: {frame.text.strip()}" for frame in self.frames[place + 1 :]]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


MOST_SHOWN = 20
"""Errors that one message spells out."""


class ErrorGroup(MspcError):
    """Several independent mistakes of one compile, reported together."""

    def __init__(self, errors: Iterable[MspcError]) -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(self.errors)} errors")

    def render(self) -> str:
        shown = [error.render() for error in self.errors[:MOST_SHOWN]]
        hidden = len(self.errors) - len(shown)
        last = f"{len(self.errors)} errors" + (f", the last {hidden} not shown" if hidden else "")
        return "\n".join([*shown, last])


class ExecutionError(MspcError):
    """A failure of a correct program while it runs: a kernel, a lost rank, a NaN in the loss."""

    exit_status = 1


def raise_all(errors: list[MspcError]) -> None:
    """Raise nothing, the one error, or all of them together."""
    unique: dict[str, MspcError] = {error.render(): error for error in errors}
    if len(unique) == 1:
        raise next(iter(unique.values()))
    if unique:
        raise ErrorGroup(unique.values())
