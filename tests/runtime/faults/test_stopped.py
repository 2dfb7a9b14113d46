"""Ranks whose processes are stopped: seen, named once, and not looked at while they move."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mspc.runtime.faults.record import CALLS, PID
from mspc.runtime.faults.stopped import NAMED, Stopped, state_of
from tests.conftest import HANG
from tests.runtime.faults.test_waiting import records


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that is stopped."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(process.pid, signal.SIGSTOP)
    limit = time.monotonic() + HANG
    while state_of(process.pid) != "T":
        assert time.monotonic() < limit
        time.sleep(0.01)
    yield process.pid
    process.kill()
    process.wait()


def looks(stopped: Stopped, start: float, seconds: float) -> dict[int, float]:
    found: dict[int, float] = {}
    for tick in range(int(seconds * 4) + 1):
        found = stopped.look(start + tick / 4)
    return found


def test_a_stopped_rank_is_named_once_for_every_stop(sleeper: int) -> None:
    found = records(2)
    found[0][PID], found[1][PID] = os.getpid(), sleeper
    stopped = Stopped(found)
    assert stopped.to_name(looks(stopped, 10, NAMED - 1)) == []
    seconds = looks(stopped, 10 + NAMED - 1, 1.5)
    assert list(seconds) == [1]
    assert stopped.to_name(seconds) == [1]
    assert stopped.to_name(stopped.look(10 + NAMED + 1)) == []
    os.kill(sleeper, signal.SIGCONT)
    limit = time.monotonic() + HANG
    while state_of(sleeper) == "T":
        assert time.monotonic() < limit
    assert stopped.look(10 + NAMED + 1.25) == {}


def test_a_rank_whose_record_changes_runs(sleeper: int) -> None:
    found = records(2)
    found[0][PID], found[1][PID] = os.getpid(), sleeper
    stopped = Stopped(found)
    for tick in range(40):
        found[1][CALLS] += 1
        assert stopped.look(10 + tick / 4) == {}


def test_a_rank_that_stops_before_it_has_an_entry(sleeper: int) -> None:
    found = records(2)
    found[0][PID] = os.getpid()
    asked: list[Any] = []

    def siblings() -> dict[int, int]:
        asked.append(None)
        return {1: sleeper}

    stopped = Stopped(found, siblings)
    assert list(looks(stopped, 10, NAMED + 2)) == [1]
    assert stopped.pid(1) == sleeper
    assert asked


def test_who_stood_still_itself_does_not_blame_others_for_the_time(sleeper: int) -> None:
    found = records(1)
    found[0][PID] = sleeper
    stopped = Stopped(found)
    looks(stopped, 10, 2)
    assert stopped.look(30) == {0: 0.0}


def test_processes_that_are_gone_have_no_state() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert state_of(child.pid) == ""
