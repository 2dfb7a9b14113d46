"""Folders in which mspc stores results that another start would have to compute again.

Compiled loops and graphs from there are run, so a folder or a file that another user owns or may change is not used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from mspc.ir.files.atomic_writing import write_atomically


def cache_folder(name: str) -> Path | None:
    """Return the folder for one kind of results, under `$XDG_CACHE_HOME/mspc` (`~/.cache/mspc`).

    It may not exist yet, see `make_cache_folder`. None for a user without a home, and if others may write there.
    """
    given, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    found = given if os.path.isabs(given) else home
    if not os.path.isabs(found):
        return None
    folder = Path(found) / "mspc" / name
    for each in (folder.parent, folder):
        with contextlib.suppress(OSError):
            if not _is_own(os.stat(each)):
                _warn_once(str(each))
                return None
    return folder


def make_cache_folder(folder: Path) -> None:
    """Create a folder of `cache_folder`, for this user alone. Raises OSError."""
    for each in (folder.parent, folder):
        each.mkdir(0o700, parents=True, exist_ok=True)


def read_own(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing or another user may have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        try:
            return file.read() if stat.S_ISREG(status.st_mode) and _is_own(status) else None
        except OSError:
            return None


def write_private(path: Path, content: bytes) -> None:
    """Write a file that `read_own` accepts, whatever the umask is. Raises MspcError."""

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)

    write_atomically(path, write, one_of_many=True)


def drop_oldest(folder: Path, suffix: str, most: int) -> None:
    """Remove the files that were not used for longest until the rest has at most `most` bytes. Raises OSError."""
    files: list[tuple[int, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                with contextlib.suppress(FileNotFoundError):  # another process removes some, too
                    found = entry.stat()
                    files.append((found.st_mtime_ns, found.st_size, entry.path))
    surplus = sum(size for _, size, _ in files) - most
    for _, size, path in sorted(files):
        if surplus <= 0:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        surplus -= size


def _is_own(status: os.stat_result) -> bool:
    """Tell whether only this user, or the administrator, may change a file or folder."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def _warn_once(folder: str) -> None:
    text = f"warning: other users own {folder!r} or may write there, so that nothing is read from it or stored in it"
    print(f"{text}; chmod go-w, or set XDG_CACHE_HOME to another folder", file=sys.stderr, flush=True)
