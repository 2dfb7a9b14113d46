"""MspcError is the one family of exceptions: every mistake of a user ends as one, with a place and a remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from functools import cache
from typing import Any

from mspc.ir.excerpt import broken_text, excerpt
from mspc.ir.location import Frames, Location

PIPE_CLOSED = 141
"""Exit status where nobody reads stdout any more: as shells have it of a process that SIGPIPE ended."""
OWN_FILES = "mspc/"
"""How the names of mspc's own files begin in call stacks."""


KINDS: tuple[type[Exception], ...] = (
    TypeError, ValueError, IndexError, KeyError, AttributeError, NameError, AssertionError, ZeroDivisionError,
    NotImplementedError, RuntimeError,
)  # fmt: skip
"""Built-in exceptions that an error of the family may be as well. The rule: TypeError for an argument of the wrong type
(Python's or an element type) and for too many or too few of them; ValueError for a wrong value or shape; the
others where Python raises them; RuntimeError for everything else in a compiled function, strategies and what is not
supported included."""


class MspcError(Exception):
    """A mistake in the user's program, command or file.

    Args:
        message: what is wrong: operator, instance name, input, dimension, value.
        location: the user's source span, when there is one.
        notes: what would be right, and further places; one line each.
        frames: the call stack, innermost first; `location` defaults to its first entry in a user's file.
        kind: the built-in exception that this one is as well, one of KINDS.

    python: what Python itself raised, where the mistake came to light that way.
    """

    exit_status = 2
    python: Exception | None = None

    def __new__(cls, *_: Any, kind: type[Exception] | None = None, **__: Any) -> MspcError:
        made: Any = cls if kind is None or issubclass(cls, kind) else _member(cls, kind)
        return super(MspcError, made).__new__(made)  # that of its kind: an OSError makes itself

    def __init__(  # type: ignore[reportInconsistentConstructor]  # __new__ looks at the kind only
        self,
        message: str,
        location: Location | None = None,
        notes: Iterable[str] = (),
        frames: Frames = (),
        kind: type[Exception] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        user = next((f for f in frames if not f.file.startswith(OWN_FILES)), frames[0] if frames else None)
        self.location = location or user
        self.notes = tuple(notes)
        self.frames = frames

    @property
    def kind(self) -> type[Exception] | None:
        """The built-in exception that this error is as well, if any."""
        return kind_of(self)

    def __str__(self) -> str:
        return self.render()

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback, whose frames are mspc's own."""
        return [f"{type(self).__name__}: {self}"]

    def render(self, width: int | None = None) -> str:
        """The complete text: `file:line:col: error: message`, the source line, carets, notes.

        width: cells of a terminal's line, in which texts are broken at spaces and a source line is shown around its
        carets; None breaks no line.
        """
        where = self.location
        lines = broken_text(f"{where}: error: {self.message}" if where else f"error: {self.message}", width)
        if where and where.text.strip():
            lines += excerpt(where.text, where.column, where.end_column, width)
        place = self.frames.index(where) if where in self.frames else 0
        further = [f"  in {frame}: {frame.text.strip()}" for frame in reversed(self.frames[:place])]
        further += [f"  called from {frame}: {frame.text.strip()}" for frame in self.frames[place + 1 :]]
        further += [f"  note: {note}" for note in self.notes]
        lines += [line for text in further for line in broken_text(text, width)]
        return "\n".join(lines)


@cache
def _member(cls: type[MspcError], kind: type[Exception]) -> type[MspcError]:
    name = cls.__name__.removesuffix("Error") + kind.__name__
    return type(name, (cls, kind), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def kind_of(error: BaseException | type[BaseException]) -> type[Exception] | None:
    """The one of KINDS that an exception or its class is, if any: what is raised in its place stays of its kind."""
    own = error if isinstance(error, type) else type(error)
    return next((kind for kind in KINDS if issubclass(own, kind)), None)


MOST_SHOWN = 20
"""Errors that one message spells out."""


class ErrorGroup(MspcError):
    """Several independent mistakes of one compile, reported together; of the first one's kind."""

    def __init__(  # type: ignore[reportInconsistentConstructor]  # __new__ looks at the kind only
        self, errors: Iterable[MspcError], kind: type[Exception] | None = None
    ) -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(self.errors)} errors")

    def render(self, width: int | None = None) -> str:
        if len(self.errors) == 1:
            return self.errors[0].render(width)
        shown = [error.render(width) for error in self.errors[:MOST_SHOWN]]
        hidden = len(self.errors) - len(shown)
        last = f"{len(self.errors)} errors" + (f", the last {hidden} not shown" if hidden else "")
        return "\n".join([*shown, last])


class ExecutionError(MspcError, RuntimeError):
    """A failure of a correct program while it runs: a kernel, a lost rank, a NaN in the loss."""

    exit_status = 1


@contextlib.contextmanager
def told_at(place: Location | None) -> Generator[None]:
    """Errors from inside that have no place of their own are told at this one, the call in which they arose."""
    try:
        yield
    except MspcError as error:
        error.location = error.location or place
        raise


def raise_all(errors: list[MspcError]) -> None:
    """Raise nothing, the one error, or all of them together, those of groups one by one."""
    every = [one for error in errors for one in (error.errors if isinstance(error, ErrorGroup) else (error,))]
    unique: dict[str, MspcError] = {error.render(): error for error in every}
    if len(unique) == 1:
        raise next(iter(unique.values()))
    if unique:
        raise ErrorGroup(unique.values(), kind=kind_of(next(iter(unique.values()))))
