"""This module reads files that a user names: regular ones of a size that fits, so that no reader waits for ever or
takes all memory. A FIFO is never opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from mspc.ir.diagnostics import MspcError

LARGEST_TEXT = 1 << 28
"""Most bytes of a text."""
BEGIN = 4096
"""Bytes that tell what a text is."""
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: Path, most: int | None = None) -> None:
    """Look before a file is opened.

    Raises:
        MspcError: it is no regular file, or has more than `most` bytes. OSError: there is no such file, it is a folder,
            or it cannot be reached. ValueError: no file can have this name.
    """
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for is_kind, name in _KINDS:
        if is_kind(status.st_mode):
            raise MspcError(f"{path} is {name}, not a file")
    if most is not None and status.st_size > most:
        raise MspcError(f"{path} has {status.st_size} bytes; a file of text may have {most}")


def read_bytes(path: Path) -> bytes:
    """What a regular file of text holds. Raises MspcError and OSError as `check_regular`."""
    check_regular(path, LARGEST_TEXT)
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The text of a regular file. Raises MspcError and OSError as `check_regular`; ValueError: it is not UTF-8."""
    check_regular(path, LARGEST_TEXT)
    return path.read_text(encoding="utf-8")


def read_begin(path: Path) -> str:
    """The first `BEGIN` bytes of a regular file, with marks for what is no UTF-8. Raises as `read_text` does."""
    check_regular(path, LARGEST_TEXT)
    with open(path, "rb") as file:
        return file.read(BEGIN).decode("utf-8", errors="replace")


RULE = "a compiled folder may name files of its own only: no absolute paths, no '..', no links that lead out of it"


def inside(folder: Path, name: str, who: str) -> Path:
    """The path of the file in `folder` that `name` is for.

    who: what names it, the subject of the sentence.

    Raises:
        MspcError: the path leads out of the folder, or can be none.
    """
    check_name(name, who)
    path = folder / name
    try:
        if not leads_out(folder, path):
            return path
    except (OSError, ValueError):  # a loop of links, a name that no file has: nothing leads anywhere
        raise MspcError(f"{who} names {name!r}, which can be no file") from None
    raise MspcError(f"{who} names {name!r}, which a link leads out of {folder}", notes=[RULE])


def check_name(name: str, who: str) -> None:
    """Whether `name` says of itself that it leads out of a folder; links are not looked at.

    Raises:
        MspcError: it does, or no file can have it.
    """
    path = Path(name)
    if not path.parts or "\0" in name:
        raise MspcError(f"{who} names {name!r}, which can be no file")
    if path.is_absolute() or ".." in path.parts:
        raise MspcError(f"{who} names {name!r}, a path out of its folder", notes=[RULE])


def leads_out(folder: Path, path: Path) -> bool:
    """Whether `path` lies outside of `folder` once links are resolved. Raises OSError or ValueError for what can be no
    path."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) != root
