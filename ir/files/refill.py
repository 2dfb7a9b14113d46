"""This module exchanges two names of a file system in one step where the system can, and replaces the contents of a
folder while the folder stays: a mount point, or one that cannot be exchanged with another.

The new contents come into the folder under the name of unfinished things, and the ending of that name says how far
things are: `.new`, they are being written; `.whole`, the old contents move away; `.ready`, the new ones move to their
names. Whatever is left half done is finished by the next who comes by. One file, the sign, is the first to leave and
the last to come, so that a folder that has it is complete.
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
"""Where the old contents go, in the folder with the new ones."""


def refill(place: Path, new: Path, sign: str) -> None:
    """Put the contents of the folder `new`, which this process holds, in the place of those of `place`. Both lie in one
    file system. Raises OSError."""
    (new / OLD).mkdir(exist_ok=True)
    renamed = place / f"{new.name.removesuffix('.new')}.whole"
    os.rename(new, renamed)
    _go_on(place, renamed, sign)


def finish_refill(place: Path, sign: str) -> None:
    """Finish what a process has begun that was killed. Raises OSError."""
    if not os.path.isdir(place):
        return
    for name in filter(PENDING.fullmatch, os.listdir(place)):
        with held(place / name) as mine:
            if mine:
                _go_on(place, place / name, sign)


def is_own_name(name: str) -> bool:
    """Whether `name` is that of something unfinished or of contents that are to come."""
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
"""Answers of a system, a file system or a mount point that exchanges nothing; anything else is a failure."""
MOUNTS = Path("/proc/self/mountinfo")


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names: the file of `one` is that of `other` afterwards, and the other way round; at no time is
    either name free.

    Returns:
        Whether that was possible here at all; where not, nothing has changed.

    Raises:
        OSError: it is possible, and has failed.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as every other change of a name
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def is_mount_point(place: Path) -> bool:
    """Whether something is mounted at an absolute path without links, a part of the same file system included."""
    if os.path.ismount(place):
        return True
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:
        return False
    mounted = (re.sub(rb"\\(\d{3})", lambda m: bytes([int(m[1], 8)]), line.split()[4]) for line in lines)
    return os.fsencode(place) in mounted
