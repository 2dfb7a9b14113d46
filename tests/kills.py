"""Kills a process at every call by which it changes files, one process for each call."""

import contextlib
import io
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from mspc.ir.files.refill import finish_refill, is_own_name
from mspc.runtime.program import PROGRAM

AUDITED = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
OF_FILES = {"write", "writelines", "flush", "truncate", "close", "__exit__"}
OF_SYSTEM = {"fsync", "ftruncate", "write", "fchmod", "flock", "close"}
Files = dict[str, bytes] | None


class Counted:
    """Counts the calls that change files; at number `fatal` the process kills itself before it makes the call."""

    def __init__(self, fatal: int = 0) -> None:
        self.calls = 0
        self._fatal = fatal
        sys.addaudithook(self._audit)
        sys.setprofile(self._profile)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in AUDITED:
            self._count()

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        owner, name = getattr(called, "__self__", None), called.__name__
        if (isinstance(owner, io.IOBase) and name in OF_FILES) or (
            name in OF_SYSTEM and getattr(called, "__module__", "") in ("posix", "fcntl")
        ):
            self._count()


def in_a_process(work: Callable[[], object], fatal: int = 0) -> int:
    """Do `work` in a process of its own that is killed at call number `fatal`; returns the number of calls, 0 for one
    that was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            counted = Counted(fatal)
            work()
            sys.setprofile(None)
            os.write(writing, str(counted.calls).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with open(reading) as pipe:
        said = pipe.read()
    assert status in ((0, signal.SIGKILL) if fatal else (0,)), f"status {status} at call {fatal}"
    return int(said or 0)


def files(folder: Path) -> Files:
    """Everything below a folder, folders as names that end in a slash; None where there is no such folder."""
    if not folder.is_dir():
        return None
    every = sorted(folder.rglob("*"))
    return {f"{p.relative_to(folder)}{'/' * p.is_dir()}": b"" if p.is_dir() else p.read_bytes() for p in every}


def program_files(place: Path) -> Files:
    """The view that `mspc run DIR` has of a compiled folder: it finishes what was begun, and does not look for anything
    that is unfinished."""
    with contextlib.suppress(OSError):
        finish_refill(place, PROGRAM)
    found = files(place)
    return found and {name: text for name, text in found.items() if not is_own_name(name.split("/")[0])}


def killed_everywhere(
    prepare: Callable[[], object], work: Callable[[], object], read: Callable[[], Files], around: Path
) -> Counter[str]:
    """Kill `work` at each of its calls, each time after `prepare`, and look at what `read` sees: what was there before,
    or what is there after `work`. Then do it again and look whether `around` holds what it holds without a kill.

    Returns:
        How often the old and how often the new was there.
    """
    prepare()
    old = read()
    calls = in_a_process(work)
    new, whole = read(), files(around)
    assert old != new
    found: Counter[str] = Counter()
    for number in range(1, calls + 1):
        prepare()
        in_a_process(work, number)
        seen = read()
        assert seen in (old, new), f"killed at call {number} of {calls}: neither the old nor the new"
        found["old" if seen == old else "new"] += 1
        work()
        assert files(around) == whole, f"killed at call {number} of {calls}: something is left behind"
    return found
