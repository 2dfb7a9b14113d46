"""Exchange of two names of a file system in one step, if the system supports it, and replacement of a folder's contents
if the folder itself must remain: a mount point, or one that cannot be exchanged.

The new contents are first written into the folder under a temporary name. The suffix of that name is the state: `.new`,
they are being written; `.whole`, the old contents are moved away; `.ready`, the new contents are moved to their
names. The next process finishes an interrupted replacement. One file, the sign, is moved away first and moved in
last, so that a folder with the sign is complete.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import sys
from pathlib import Path

from mspc.ir.files.atomic_writing import UNFINISHED, held

PENDING = re.compile(UNFINISHED.pattern.removesuffix("new") + "(whole|ready)")
OLD = ".old"
"""Subfolder for the old contents, in the folder with the new ones."""


def refill(place: Path, new: Path, sign: str) -> None:
    """Replace the contents of `place` by those of the folder `new`, which this process holds. Both are in one file
    system. Raise OSError if that fails."""
    (new / OLD).mkdir(exist_ok=True)
    renamed = place / f"{new.name.removesuffix('.new')}.whole"
    os.rename(new, renamed)
    _go_on(place, renamed, sign)


def finish_refill(place: Path, sign: str) -> None:
    """Finish the replacement of a killed process. Raise OSError if that fails."""
    if not os.path.isdir(place):
        return
    for name in filter(PENDING.fullmatch, os.listdir(place)):
        with held(place / name) as mine:
            if mine:
                _go_on(place, place / name, sign)


def is_own_name(name: str) -> bool:
    """Return whether `name` is a temporary name of an unfinished file or of new contents."""
    return bool(UNFINISHED.fullmatch(name) or PENDING.fullmatch(name))


def _go_on(place: Path, pending: Path, sign: str) -> None:
    if pending.suffix == ".whole":
        for name in sorted(os.listdir(place), key=lambda name: name != sign):
            if not is_own_name(name):
                os.rename(place / name, pending / OLD / name)
        ready = pending.with_suffix(".ready")
        os.rename(pending, ready)
        pending = ready
    for name in sorted(os.listdir(pending), key=lambda name: name == sign):
        if name != OLD:
            os.rename(pending / name, place / name)
    shutil.rmtree(pending, ignore_errors=True)


RENAME_EXCHANGE = 2
AT_FDCWD = -100
CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EBUSY)
"""Errors of a system, a file system or a mount point without support for exchange; any other error is a failure."""
MOUNTS = Path("/proc/self/mountinfo")


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names: each path then names the file of the other. At no time is either name missing. Return whether
    the system supports this; if not, nothing has changed. Raise OSError if it is supported, but failed."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as for every other rename
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def is_mount_point(place: Path) -> bool:
    """Return whether an absolute path without links is a mount point, bind mounts of the same file system included."""
    if os.path.ismount(place):
        return True
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:
        return False
    mounted = (re.sub(rb"\\(\d{3})", lambda m: bytes([int(m[1], 8)]), line.split()[4]) for line in lines)
    return os.fsencode(place) in mounted
