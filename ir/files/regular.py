"""Reading of files that a user names: only regular files of limited size, so that no reader waits forever or uses all
memory. A FIFO is never opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from mspc.ir.diagnostics import MspcError

LARGEST_TEXT = 1 << 28
"""Most bytes of a text."""
BEGIN = 4096
"""Bytes that are enough to recognise the kind of a text."""
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: Path, most: int | None = None) -> None:
    """Check a file before it is opened. Raise MspcError if it is no regular file, or has more than `most` bytes, and
    OSError if it does not exist, is a folder, or cannot be reached, and ValueError if no file can have this name."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for is_kind, name in _KINDS:
        if is_kind(status.st_mode):
            raise MspcError(f"{path} is {name}, not a file")
    if most is not None and status.st_size > most:
        raise MspcError(f"{path} has {status.st_size} bytes; a file of text may have {most}")


def read_bytes(path: Path) -> bytes:
    """Return the contents of a regular text file. Raise MspcError and OSError as `check_regular`."""
    check_regular(path, LARGEST_TEXT)
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Return the text of a regular file. Raise MspcError and OSError as `check_regular`, and ValueError if it is not
    UTF-8."""
    check_regular(path, LARGEST_TEXT)
    return path.read_text(encoding="utf-8")


def read_begin(path: Path) -> str:
    """Return the first `BEGIN` bytes of a regular file as text, with replacement marks for bytes that are not UTF-8.
    Raise MspcError and OSError as `check_regular`."""
    check_regular(path, LARGEST_TEXT)
    with open(path, "rb") as file:
        return file.read(BEGIN).decode("utf-8", errors="replace")


RULE = "a compiled folder may name files of its own only: no absolute paths, no '..', no links that lead out of it"


def inside(folder: Path, name: str, who: str) -> Path:
    """Return the path of the file `name` in `folder`.

    who: the source of the name, the subject of the message. Raise MspcError if the path leads out of the folder, or no
    file can have it.
    """
    check_name(name, who)
    path = folder / name
    try:
        if not leads_out(folder, path):
            return path
    except (OSError, ValueError):  # a loop of links, or a name that no file can have
        raise MspcError(f"{who} names {name!r}, which can be no file") from None
    raise MspcError(f"{who} names {name!r}, which a link leads out of {folder}", notes=[RULE])


def check_name(name: str, who: str) -> None:
    """Check that `name` itself does not lead out of a folder; links are not resolved. Raise MspcError if it leads out,
    or no file can have this name."""
    path = Path(name)
    if not path.parts or "\0" in name:
        raise MspcError(f"{who} names {name!r}, which can be no file")
    if path.is_absolute() or ".." in path.parts:
        raise MspcError(f"{who} names {name!r}, a path out of its folder", notes=[RULE])


def leads_out(folder: Path, path: Path) -> bool:
    """Return whether `path` is outside `folder` after links are resolved. Raise OSError or ValueError if it cannot be a
    path."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) != root
