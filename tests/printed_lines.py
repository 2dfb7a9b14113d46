"""The output of a running process, read line by line within a limit."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable

import pytest

from tests.serving import HANG


def lines_until(
    job: subprocess.Popen[str], enough: Callable[[list[str]], bool], limit: float = HANG
) -> list[str]:
    """The lines that a job prints on its stdout, a pipe, until `enough` says so of those so far.

    A job that ends before fails the test with what it has printed. So does one that takes longer than `limit` seconds;
    it is killed, and with it its group of processes where it leads one.
    """
    assert job.stdout is not None
    lines: list[str] = []
    late = threading.Event()

    def stop() -> None:
        late.set()
        _kill(job)

    timer = threading.Timer(limit, stop)
    timer.start()
    try:
        while not (lines and enough(lines)):
            line = job.stdout.readline()
            if not line:
                complaint = job.stderr.read() if job.stderr is not None else ""
                how = f"was killed after {limit:g} s" if late.is_set() else "has ended"
                pytest.fail(f"the job {how}; it printed:\n{''.join(lines)}{complaint}")
            lines.append(line)
    finally:
        timer.cancel()
    return lines


def _kill(job: subprocess.Popen[str]) -> None:
    try:
        if os.getpgid(job.pid) == job.pid:
            os.killpg(job.pid, signal.SIGKILL)
        else:
            job.kill()
    except ProcessLookupError:
        return
