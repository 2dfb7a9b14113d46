"""Calls that are made in forked processes, from which an endless loop or a crash does not come back."""

import collections
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn


def forked(calls: Sequence[Callable[[], Any]], jobs: int) -> Iterator[tuple[int, Any]]:
    """Make every call in a process of its own, `jobs` at a time: the number of a call and what it gives, or the status
    of a process that ended without giving anything."""
    numbers: dict[int, int] = {}
    waiting = collections.deque(enumerate(calls))
    with tempfile.TemporaryDirectory() as folder:
        while waiting or numbers:
            if waiting and len(numbers) < jobs:
                number, call = waiting.popleft()
                process = os.fork()
                if process == 0:
                    _give(call, Path(folder, str(number)))
                numbers[process] = number
                continue
            process, status = os.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # what it may have started
            part = Path(folder, str(number := numbers.pop(process)))
            yield number, json.loads(part.read_text()) if part.exists() else os.waitstatus_to_exitcode(status)


def _give(call: Callable[[], Any], path: Path) -> NoReturn:
    """Make a call, write what it gives to a file, and end the process."""
    with contextlib.suppress(BaseException), open(os.devnull, "r+b") as nothing:
        os.setpgid(0, 0)
        for stream in range(3):
            os.dup2(nothing.fileno(), stream)
        path.write_text(json.dumps(call()), encoding="utf-8")
    os._exit(1)
