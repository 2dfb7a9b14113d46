"""Ranks that others wait for and that do nothing: told from those that compute, named once, and their job's end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mspc.engine.ranks.launcher import mpirun_environment
from mspc.runtime.faults.record import CALLS, PID, RUNNING, STATE, STEP
from mspc.runtime.faults.stopped import BUSY, EVERY, IDLE_NAMED, Idle, Wait, in_group, work_of
from tests.conftest import HANG
from tests.runtime.faults.pauses import SCRIPT
from tests.runtime.faults.test_waiting import records

QUIET = 4
"""Looks in a row that find no work done, after which a process rests: a quick one does less than what is counted."""
SLEEP = "import time; time.sleep(600)"
WORK = "while True: pass"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process that does what the parameter says."""
    started = subprocess.Popen([sys.executable, "-c", request.param], process_group=0)
    yield started.pid
    os.killpg(started.pid, 9)
    started.wait()


def job(pid: int) -> list[Any]:
    """Rank 0 waits for rank 1, which is another process."""
    found = records(2)
    for record, process in zip(found, (os.getpid(), pid), strict=True):
        record[PID], record[STATE] = process, RUNNING
    in_group(found[0], (0, 1), 0).__enter__()
    return found


def looks(idle: Idle, start: float, seconds: float) -> list[Wait]:
    found: list[Wait] = []
    for tick in range(int(seconds / EVERY) + 1):
        found = idle.look(start + tick * EVERY)
    return found


def settled(pid: int) -> None:
    """Wait until a process that begins by importing things rests."""
    limit = time.monotonic() + HANG
    before, alike = -1.0, 0
    while alike < QUIET:
        assert time.monotonic() < limit
        time.sleep(0.2)
        seen = work_of(pid)[0]
        before, alike = seen, alike + 1 if seen == before else 0


@pytest.mark.parametrize("process", [SLEEP], indirect=True)
def test_a_rank_that_sleeps_is_named_once(process: int) -> None:
    settled(process)
    idle = Idle(job(process))
    assert idle.to_name(looks(idle, 10, IDLE_NAMED - 1)) == []
    waits = looks(idle, 10 + IDLE_NAMED, 1)
    assert [(w.rank, w.idle) for w in waits] == [(0, 1)]
    assert waits[0].seconds == IDLE_NAMED + 1
    assert idle.to_name(waits) == waits
    assert idle.to_name(looks(idle, 10 + IDLE_NAMED + 2, 1)) == []


@pytest.mark.parametrize("process", [SLEEP], indirect=True)
@pytest.mark.parametrize("word", [STEP, CALLS])
def test_a_rank_whose_record_changes_is_not_idle(process: int, word: int) -> None:
    settled(process)
    found = job(process)
    idle = Idle(found)
    looks(idle, 10, IDLE_NAMED)
    found[1][word] += 1
    assert [wait.seconds for wait in idle.look(10 + IDLE_NAMED + 1)] == [0]


@pytest.mark.parametrize("process", [WORK, CHILD], indirect=True, ids=["itself", "a process below it"])
def test_a_rank_that_computes_is_not_idle(process: int) -> None:
    idle = Idle(job(process))
    limit = time.monotonic() + HANG
    while work_of(process)[0] < 10 * BUSY:  # a process below it has come up, too
        assert time.monotonic() < limit
        time.sleep(0.05)
    looks(idle, 10, IDLE_NAMED)
    before = work_of(process)[0]
    while work_of(process)[0] < before + 2 * BUSY:
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert [wait.seconds for wait in idle.look(10 + IDLE_NAMED + 1)] == [0]


@pytest.mark.parametrize("process", [SLEEP], indirect=True)
def test_nobody_is_idle_whom_nobody_waits_for(process: int) -> None:
    found = job(process)
    in_group(found[1], (0, 1), 0).__enter__()
    idle = Idle(found)
    assert looks(idle, 10, 2 * IDLE_NAMED) == []


def test_a_rank_that_does_nothing_ends_its_job(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    stuck = "    if _ == 4 and ms.communication.get_rank() == 1:\n        time.sleep(600)\n"
    script.write_text(SCRIPT.replace("    time.sleep(0.004)\n", stuck))
    command = [sys.executable, "-m", "mspc", "run", str(script), "--ranks", "4", "--timeout", "3", "--", "9"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=HANG, env=mpirun_environment()
    )
    assert done.returncode == 1
    assert re.search(r"for rank 1, which has done nothing for \d+ s after step 5\n", done.stderr)
    assert "error: rank 0 waits in step 6, at " in done.stderr
    assert "  note: its process is " in done.stderr
