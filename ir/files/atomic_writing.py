"""mspc writes every file in this one way: beside its place, and moved there when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.temporary import remove_left_over, unfinished_file

OPEN_ALREADY = re.compile(r"/dev/(fd/|std)|/proc/")
"""Paths that stand for what a process has open: they are written to, whatever lies behind them."""


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], shown: Path | None = None, one_of_many: bool = False
) -> None:
    """Write a file: a reader sees the old one or the new one, never half of it, nor is there one after a crash.

    A link stays one, and what it leads to is written; pipes and devices are written to as they are.

    Args:
        write: writes to what it is handed. shown: the path as the user wrote it, where that is another.
        one_of_many: a file of a long row, such as a dump of every step. The disk is not waited for, and what others
            have left in the folder is not looked for.

    Raises:
        MspcError: it cannot be written; an older file is as it was.
    """
    try:
        if _is_written_to(path):
            with open(path, "wb") as file:
                write(file)
            return
        place = Path(os.path.realpath(path))
        if not one_of_many:
            remove_left_over(place.parent)
        _replace(place, write, wait=not one_of_many)
    except (OSError, ValueError) as error:  # ValueError: characters that no file name holds
        raise cannot_write(shown or path, error) from None


def _replace(place: Path, write: Callable[[BinaryIO], object], wait: bool) -> None:
    if place.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    with unfinished_file(place.parent, place.name) as beside, open(beside.descriptor, "wb") as file:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(beside.descriptor, stat.S_IMODE(os.stat(place).st_mode))
        write(file)
        file.flush()
        if wait:
            os.fsync(beside.descriptor)
        os.replace(beside.path, place)


def check_writable(path: Path, option: str = "") -> None:
    """Find out ahead whether `write_atomically` can write a file, so that no work is done for nothing.

    option: by which the user named it.

    Raises:
        MspcError: it cannot.
    """
    try:
        if _is_written_to(path):
            return
        place = Path(os.path.realpath(path))
        reason = _hindrance(place, path)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from None
    if reason:
        notes = [f"{option} names a file"] if option and place.is_dir() else []
        raise MspcError(f"cannot write {path}: {reason}", notes=notes)


def check_files(files: Mapping[str, Path | None]) -> None:
    """`check_writable` for the files that a command is to write, by the options that name them.

    Raises:
        MspcError: one cannot be written, or two are the same.
    """
    found: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        check_writable(path, option)
        place = os.path.realpath(path)
        if place in found and not _is_written_to(path):
            raise MspcError(f"{found[place]} and {option} both name {path}", notes=["give each a file of its own"])
        found[place] = option


def _hindrance(place: Path, path: Path) -> str:
    """Why no file can be written at `place`, which the user called `path`; "" where one can."""
    folder = place.parent
    shown = str(path.parent if not path.is_symlink() else folder)
    if place.is_dir():
        return "it is a folder"
    if not folder.exists():
        return f"there is no folder {shown!r}"
    if not folder.is_dir():
        return f"{shown!r} is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {shown!r} is read-only"
    with contextlib.suppress(FileNotFoundError):
        os.stat(place)  # a name that is too long
        if not os.access(place, os.W_OK):
            return "it is read-only"
    return ""


def make_folder(folder: Path) -> None:
    """Make a folder for files, and those above it, where they are missing.

    Raises:
        MspcError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise MspcError(f"cannot write to {shown_path(folder)}: it is a file") from None
    except (OSError, ValueError) as error:
        raise _cannot_make(folder, error) from None


def check_folder(folder: Path, name: str) -> None:
    """Find out ahead if `make_folder` and then `write_atomically` of a file `name` in the folder can do their work;
    nothing is made.

    Raises:
        MspcError: they cannot.
    """
    place, missing = Path(os.path.abspath(folder)), [""]
    while not os.path.lexists(place):
        missing.append(place.name)
        place = place.parent
    if len(missing) == 1 and not place.is_dir():
        raise MspcError(f"cannot write to {shown_path(folder)}: it is a file")
    if len(missing) == 1:
        check_writable(folder / name)
        return
    above = [(part, folder, _cannot_make) for part in missing]
    for part, path, cannot in [*above, (name, folder / name, cannot_write)]:
        try:
            os.stat(place / part)  # it is not there; a name that is too long is another error
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise cannot(path, error) from None
    if not os.access(place, os.W_OK | os.X_OK):
        raise MspcError(f"cannot write to {shown_path(folder)}: the folder {shown_path(place)} is read-only")


def _cannot_make(folder: Path, error: Exception) -> MspcError:
    return MspcError(f"cannot write to {shown_path(folder)}: {reason_of(error)}")


def cannot_write(path: Path, error: Exception) -> MspcError:
    """The mistake for an OSError, or for the ValueError that a name gets that no file can have."""
    return MspcError(f"cannot write {shown_path(path)}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """What an error of the file system says, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def utf8_bytes(text: str) -> bytes:
    """A text in UTF-8; bytes of names of files that are none stand as escapes."""
    return text.encode("utf-8", "backslashreplace")


def shown_path(path: Path) -> str:
    """A path as text that a terminal can show."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _is_written_to(path: Path) -> bool:
    """Whether a path leads to a pipe or a device, or to something that is open already: nothing is replaced there."""
    if OPEN_ALREADY.match(os.path.abspath(path)):
        return True
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
