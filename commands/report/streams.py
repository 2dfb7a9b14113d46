"""Standard streams of a command. If they are closed, full or no longer read, the command ends without a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from mspc.ir.diagnostics import PIPE_CLOSED, MspcError, shown
from mspc.ir.text.limits import number_of


class StandardOut(io.TextIOWrapper):
    """Stdout that records why it could not be written. lost: the error, None without one."""

    lost: OSError | None = None

    def write(self, text: str, /) -> int:
        """Write as any stream, and record and raise an OSError."""
        with self._remembered():
            return super().write(text)

    def flush(self) -> None:
        """Flush as any stream, and record and raise an OSError."""
        with self._remembered():
            super().flush()

    @contextlib.contextmanager
    def _remembered(self) -> Any:
        try:
            yield
        except OSError as error:
            self.lost = error
            raise


def run_guarded(command: Callable[[], Any]) -> int:
    """Run a command in this process and return its exit status; stdout's buffer is empty afterwards."""
    _fill_gaps()
    out = _guarded_stdout()
    status = 0
    try:
        command()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            complain(stop.code)
        status = 1 if isinstance(stop.code, str) else int(stop.code or 0)
    except OSError:
        if out is None or out.lost is None:
            raise
    if out is None:
        return status
    with contextlib.suppress(OSError):
        out.flush()
    if out.lost is None:
        return status
    _give_up(out)
    if out.lost.errno == errno.EPIPE:
        return PIPE_CLOSED
    complain(f"error: cannot write to stdout: {out.lost.strerror}")
    return status or 1


def complain(text: str) -> None:
    """Write a message to stderr. If stderr cannot be written, only the exit status reports the error."""
    try:
        print(shown(text, lines=True), file=sys.stderr, flush=True)
    except OSError:
        _discard(2, sys.stderr.flush)  # the end of the process would report the buffer by status 120


def complain_of(error: MspcError) -> None:
    """Write an error to stderr, in lines as wide as the terminal if it is one."""
    complain(error.report(terminal_columns(sys.stderr)))


def terminal_columns(stream: Any) -> int | None:
    """Return the width of the terminal to which `stream` writes, None if it is no terminal.

    The width is that of the stream itself, not of `sys.__stdout__`, which may be a pipe or another terminal. The
    terminals that mpirun creates for its ranks have no meaningful width.
    """
    if not is_terminal(stream):
        return None
    with contextlib.suppress(OSError, ValueError):
        return columns_setting() or os.get_terminal_size(stream.fileno()).columns or None
    return None


MAX_COLUMNS = 1 << 16


def columns_setting() -> int | None:
    """Return the width that COLUMNS sets, None if it is no positive number."""
    return number_of(os.environ.get("COLUMNS", ""), MAX_COLUMNS) or None


def is_terminal(stream: Any) -> bool:
    """Return whether a person's terminal shows `stream`: the terminals that mpirun makes for its ranks do not count."""
    if not stream.isatty():
        return False
    from mspc.mindspore_api.state import Session  # few who print to no terminal need it

    return Session.from_environment().size == 1


def _fill_gaps() -> None:
    """Replace closed streams, so that a file that is opened later does not get their file descriptors.

    Reading such a stdin, or writing such a stdout, then fails with an error; stderr is dropped.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, flags)
            if found != number:
                os.dup2(found, number)
                os.close(found)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:  # Python's mark of a closed stream
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


def _guarded_stdout() -> StandardOut | None:
    """Return a guarded stdout, None if another object has replaced it. Characters outside its encoding are escaped.

    `sys.__stdout__` becomes the guarded stream too: the old object is detached, and scripts that write to it, or ask it
    for the terminal's size as `shutil` does, would fail.
    """
    old: Any = sys.stdout
    if type(old) is not io.TextIOWrapper:
        return None
    errors = "backslashreplace" if old.errors == "strict" else old.errors
    by_line, encoding = old.line_buffering, old.encoding
    out = StandardOut(old.detach(), encoding=encoding, errors=errors, line_buffering=by_line)
    sys.stdout = out
    if sys.__stdout__ is old:
        sys.__stdout__ = out  # pyright: ignore[reportConstantRedefinition]  # its stream has gone
    return out


def _give_up(out: StandardOut) -> None:
    """Discard the remaining buffer, so that the end of the process reports no second error."""
    _discard(1, partial(io.TextIOWrapper.flush, out))
    sys.stdout = out


def _discard(number: int, flush: Callable[[], None]) -> None:
    """Connect a stream's descriptor to the null device, and empty its buffer there."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
    with contextlib.suppress(OSError):
        flush()
