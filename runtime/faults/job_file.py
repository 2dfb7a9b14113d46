"""Opens the small file that the ranks of a job on one host map as shared memory.

Every rank must find it by its name, which others can guess, in a folder that everybody may write to. So a file is only
used if it is a plain file of this user that nobody else can open, and symbolic links are not followed. Each rank holds
a shared `flock` on it while it lives: a file without a lock is left over from a job that was killed while it started,
and the next job removes it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.files.atomic_writing import held, is_at, remove

_TRIES = 1000
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class JobFile:
    """The file of a job, filled with zeros when the first rank opens it.

    Args:
        name: the job's own name, the same on all its ranks. length: in bytes.

    Raises:
        ExecutionError: there is no memory for it, or another user has a file of this name.
    """

    def __init__(self, name: str, length: int) -> None:
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
        safe = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
        self.path = os.path.join(folder, f"mspc-{os.getuid()}-{safe}")
        self._is_ours = False
        try:
            self.descriptor = self._locked(length)
            self.memory = mmap.mmap(self.descriptor, length)
        except OSError as error:
            self.remove()
            raise ExecutionError(
                f"ranks cannot share memory in {self.path}: {error.strerror}",
                notes=[f"every rank maps this file, which takes {length} bytes of {folder}"],
            ) from None

    def remove(self) -> None:
        """Remove the name; the ranks that have opened the file keep it."""
        if self._is_ours:
            with suppress(OSError):  # another rank was first
                os.unlink(self.path)

    def _locked(self, length: int) -> int:
        """Open the file, create it if it is missing or left over, and hold a shared lock."""
        for _ in range(_TRIES):
            descriptor = _opened(self.path)
            first = descriptor is not None and _has_no_owner(descriptor)
            if descriptor is None:
                continue
            if not first:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not is_at(Path(self.path), descriptor):  # removed between opening and locking
                os.close(descriptor)
                continue
            self._is_ours = True
            if first:
                os.ftruncate(descriptor, 0)
                # Unlike ftruncate this fails if memory is short; later a rank would die by SIGBUS.
                os.posix_fallocate(descriptor, 0, length)
                _remove_left_over(self.path)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            return descriptor
        raise OSError(0, "other processes keep removing it")


def _opened(path: str) -> int | None:
    """Create the file or open the one that is there; None if it disappears meanwhile."""
    try:
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    if _is_own(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    raise OSError(0, "somebody else has made a file of this name; remove it")


def _is_own(status: os.stat_result) -> bool:
    """Tell whether a file is plain, this user's alone, and has no second name that it would be destroyed under."""
    private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return stat.S_ISREG(status.st_mode) and private and status.st_nlink <= 1


def _has_no_owner(descriptor: int) -> bool:
    """Take the exclusive lock if no rank holds a lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_left_over(path: str) -> None:
    """Remove this user's files of other jobs that no rank has open any more."""
    folder, own = os.path.split(path)
    try:
        names = [name for name in os.listdir(folder) if name.startswith(f"mspc-{os.getuid()}-") and name != own]
    except OSError:
        return
    for name in names:
        with held(Path(folder, name)) as mine:
            if mine:
                remove(Path(folder, name))
