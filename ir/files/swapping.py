"""This module exchanges two names of a file system in one step, where the system can do that."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from pathlib import Path

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
