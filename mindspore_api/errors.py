"""Errors of the Python API: each is an MspcError and also the built-in exception that a script expects."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import sys
from collections.abc import Iterable

from mspc.ir.diagnostics import OWN_FILES, ErrorGroup, Location, MspcError, cell_name

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PYTHON = os.path.dirname(os.__file__)


class ApiError(MspcError):
    """A wrong call of the Python API; the location is the caller's line in the user's file."""

    def __init__(
        self, message: str, notes: Iterable[str] = (), location: Location | None = None, code: str = ""
    ) -> None:
        super().__init__(message, location or caller_location(), notes, code=code)


class ApiValueError(ApiError, ValueError):
    """An argument has an impossible value."""

    class_code = "E1002"


class ApiTypeError(ApiError, TypeError):
    """An argument has the wrong type."""

    class_code = "E1001"


class ApiKeyError(ApiError, KeyError):
    """A dict has an unknown key, or lacks a required one."""

    class_code = "E1003"


class ApiAttributeError(ApiError, AttributeError):
    """A name that an object lacks."""

    class_code = "E1004"


class ApiIndexError(ApiError, IndexError):
    """An index is out of range."""

    class_code = "E0212"


class ApiRuntimeError(ApiError, RuntimeError):
    """A call at the wrong time, for example before `init()`."""

    class_code = "E1010"


def caller_location() -> Location | None:
    """Return the innermost running line outside mspc and outside installed libraries, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            return _location(file, frame.f_code, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return None


def raising_location(error: BaseException) -> Location | None:
    """Return the innermost line of user code that an exception passed through, or None."""
    found: Location | None = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library(code.co_filename):
            found = _location(code.co_filename, code, trace.tb_lasti, trace.tb_lineno)
        trace = trace.tb_next
    return found


def at_users_line(error: MspcError, place: Location | None = None) -> None:
    """Set the location of an error in mspc's files, or without location, to the line of user code that led to it.

    place: that line; None for the innermost one that the exception passed through.
    """
    if isinstance(error, ErrorGroup):
        known: dict[object, MspcError] = {}
        for each in error.errors:
            before = each.location
            at_users_line(each, place or raising_location(error))
            # One mistake of a script may be found at several lines of mspc.
            known.setdefault(id(each) if each.location is before else (each.message, each.location), each)
        error.errors = tuple(known.values())
        return
    if error.location is not None and not error.location.file.startswith(OWN_FILES):
        return
    user = place or raising_location(error)
    if user is not None:
        error.location = user
        error.frames = (*error.frames, user) if error.frames else ()


def is_own(file: str) -> bool:
    """Return whether a source file is one of mspc's modules; samples and tests in a checkout are none."""
    if not file.startswith(PACKAGE):
        return False
    folder = file[len(PACKAGE) :].partition(os.sep)[0]
    return folder.endswith(".py") or _is_room(folder)


@functools.cache
def _is_room(folder: str) -> bool:
    return os.path.isfile(os.path.join(PACKAGE, folder, "__init__.py"))


@functools.cache
def is_library(file: str) -> bool:
    """Return whether a source file belongs to mspc or to an installed library, not to the user."""
    if is_own(file) or file.startswith("<") or "site-packages" in file:
        return True
    return file.startswith(_PYTHON)


def _location(file: str, code: object, instruction: int, line: int) -> Location:
    text = linecache.getline(file, line).rstrip("\n")
    place = max(instruction // 2, 0)
    spans = itertools.islice(code.co_positions(), place, None)  # type: ignore[attr-defined]  # since 3.11
    first, last, start, end = next(spans, (line, line, None, None))
    shown = cell_name(file) or _from_here(file, os.getcwd())
    if first != line or start is None:
        return Location(shown, line, text=text)
    column = _characters(text, start)
    end_column = _characters(text, end) if last == line and end is not None else len(text)
    return Location(shown, line, column + 1, end_column + 1, text)


@functools.lru_cache
def _from_here(file: str, here: str) -> str:
    """Return a file's name relative to a folder, or its full path if it is outside of the folder."""
    shown = os.path.relpath(file, here)
    return file if shown.startswith("..") else shown


def _characters(text: str, offset: int) -> int:
    return len(text.encode()[:offset].decode(errors="ignore"))
