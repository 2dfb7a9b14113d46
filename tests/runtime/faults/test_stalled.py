"""Ranks that stand still, idle, are stopped or paused: each is told from those that compute, and named once."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.ir.diagnostics import shown_ranks
from mspc.runtime.faults.record import CALLS, ENDED, GRAPH, MARK, PID, RUNNING, STATE, STEP, WAITS
from mspc.runtime.faults.stopped import (
    BUSY,
    END,
    ENDED_PATIENCE,
    EVERY,
    IDLE_NAMED,
    NAMED,
    Idle,
    Mark,
    Stalled,
    Stopped,
    Wait,
    WaitingNode,
    behind,
    find,
    in_group,
    meetings,
    packed,
    state_of,
    unpacked,
    work_of,
)
from tests.conftest import LOADED
from tests.operators import AllGather, AllReduce, NeighborExchange, Receive, Send
from tests.runtime.faults.pauses import NAMED_WITHIN, SCRIPT, pause_job, stop_job
from tests.runtime.faults.test_waiting import records
from tests.runtime.graphs import GraphMaker
from tests.serving import HANG, run_process

ALL, LEFT, RIGHT = (0, 1, 2, 3), (0, 1), (2, 3)


def meeting(index: int, *ranks: int, kind: Any = None) -> WaitingNode:
    return WaitingNode(index, f"AllReduce 'n{index}'", ranks, kind or ranks)


def rows(rank: int, graph: int) -> list[WaitingNode]:
    """Every rank: in its pair at nodes 2 and 6, with all at node 4."""
    pair = LEFT if rank in LEFT else RIGHT
    return [meeting(2, *pair), meeting(4, *ALL), meeting(6, *pair)]


def seen(**places: Any) -> dict[int, Mark | None]:
    return {int(name[1:]): place and Mark(*place) for name, place in places.items()}


@pytest.mark.parametrize(("graph", "step", "index"), [(0, 1, 0), (127, 2**32 - 1, END), (3, 7, 12345)])
def test_marks_are_read_back(graph: int, step: int, index: int) -> None:
    word = packed(graph, step, index)
    assert 0 < word < 2**63
    assert word == packed(graph, 0, index) | step << 24
    assert unpacked(word) == Mark(graph, step, index)
    assert unpacked(0) is None


@pytest.mark.parametrize(
    ("marks", "rank", "index", "missing", "circle"),
    [
        # rank 3 never began step 2
        (seen(r0=(0, 2, 4), r1=(0, 2, 4), r2=(0, 2, 2), r3=(0, 1, END)), 0, 4, (3,), False),
        # rank 2 has not begun at all
        (seen(r0=(0, 1, 4), r1=(0, 1, 4), r2=None, r3=(0, 1, 2)), 0, 4, (2,), False),
        # rank 1 hangs between its pair's collective and the one of all
        (seen(r0=(0, 1, 4), r1=(0, 1, 2), r2=(0, 1, 4), r3=(0, 1, 4)), 0, 4, (1,), False),
        # ranks 0 and 1 are in the second network, 2 and 3 still in the first
        (seen(r0=(1, 1, 4), r1=(1, 1, 4), r2=(0, 9, END), r3=(0, 9, END)), 0, 4, (2, 3), False),
        # behind in steps, though further in the step
        (seen(r0=(0, 3, 2), r1=(0, 2, 6), r2=(0, 2, END), r3=(0, 2, END)), 0, 2, (1,), False),
    ],
)
def test_the_missing_rank_is_found(marks: Any, rank: int, index: int, missing: Any, circle: bool) -> None:
    verdict = find(marks, rows)
    assert verdict is not None
    assert (verdict.rank, verdict.at.index, verdict.missing, verdict.circle) == (rank, index, missing, circle)


def test_nobody_is_missing_where_all_have_come_or_ended_their_step() -> None:
    assert find(seen(r0=(0, 1, 4), r1=(0, 1, 4), r2=(0, 1, 4), r3=(0, 1, 4)), rows) is None
    assert find(seen(r0=(0, 1, END), r1=(0, 1, END), r2=None, r3=None), rows) is None
    # ahead of the others: they have come
    assert find(seen(r0=(0, 1, 4), r1=(0, 1, 4), r2=(0, 1, END), r3=(0, 1, END)), rows) is None


def test_a_circle_names_its_first_rank() -> None:
    def crossed(rank: int, graph: int) -> list[WaitingNode]:
        first, second = (LEFT, (1, 0)) if rank == 0 else ((1, 0), LEFT)
        return [WaitingNode(1, "a", LEFT, first), WaitingNode(2, "b", LEFT, second)]

    verdict = find(seen(r0=(0, 1, 1), r1=(0, 1, 1)), crossed)
    assert verdict is not None
    assert (verdict.rank, verdict.missing, verdict.circle) == (0, (1,), True)


def test_exchanges_are_counted_between_the_two_ranks_that_take_part() -> None:
    """Rank 2 has no piece in the first exchange; at the second it has come all the same."""
    schedules = {
        0: [meeting(1, 0, 1, kind="exchange"), meeting(5, 0, 2, kind="exchange")],
        1: [meeting(1, 0, 1, kind="exchange")],
        2: [meeting(3, 0, 2, kind="exchange")],
    }
    schedule = lambda rank, graph: schedules[rank]  # noqa: E731
    assert find(seen(r0=(0, 1, 5), r1=(0, 1, END), r2=(0, 1, 3)), schedule) is None
    verdict = find(seen(r0=(0, 2, 5), r1=(0, 2, END), r2=(0, 1, END)), schedule)
    assert verdict is not None
    assert verdict.missing == (2,)


def test_meetings_of_a_graph() -> None:
    make = GraphMaker()
    x = make.parameter("x", (2, 4))
    y = make.node(AllReduce(rank_list=(3, 1)), x, instance="w")
    y = make.node(AllGather(rank_list=(1,)), y)
    y = make.node(Send(sr_tag=2, dest_rank=0), y)
    z = make.node(Receive(sr_tag=2, src_rank=0, shape=(2, 4)))
    received = ((1,), (1,))
    exchange = NeighborExchange((2,), (1, 5), recv_shapes=received, rank_list=tuple(range(6)))
    make.node(exchange, z)
    found = meetings(make.returns(y), rank=1)
    assert [(m.index, m.ranks, m.kind) for m in found] == [
        (0, (1, 3), ((1, 3), -1)),
        (2, (0, 1), ((1, 0), 2)),
        (3, (0, 1), ((0, 1), 2)),
        (4, (1, 2, 5), ((0, 1, 2, 3, 4, 5), -1)),
    ]
    assert found[0].what == "AllReduce 'w'"


def test_a_standstill_is_told_once_and_only_with_work_under_way() -> None:
    found = records(2)
    stalled = Stalled(found, 20.0)
    assert not stalled.look(0.0)
    assert not stalled.look(100.0), "no GPU has left a mark"
    found[0][MARK] = packed(0, 1, 4)
    assert not stalled.look(101.0)
    assert not stalled.look(120.0)
    found[1][STEP] = 1
    assert not stalled.look(122.0), "rank 1 has moved"
    assert not stalled.look(141.0)
    assert stalled.look(142.5)
    assert not stalled.look(143.0)
    found[0][MARK] = packed(0, 1, END)
    assert not stalled.look(150.0)
    assert not stalled.look(300.0), "the step is over"


def test_a_rank_that_has_ended_is_not_waited_for_long() -> None:
    found = records(2)
    stalled = Stalled(found, 20.0)
    found[0][MARK], found[1][STATE] = packed(0, 2, 4), ENDED
    assert not stalled.look(0.0)
    assert not stalled.look(ENDED_PATIENCE - 0.1)
    assert stalled.look(ENDED_PATIENCE + 0.1)


def test_the_reason_is_said() -> None:
    marks = seen(r0=(0, 2, 4), r1=(0, 2, 4), r2=(0, 2, 4), r3=(0, 1, END))
    verdict = find(marks, rows)
    assert verdict is not None
    (record,) = records(1)
    assert behind(verdict, 3, marks[3], record, rows) == "has not begun the step"
    record[STEP] = 2
    assert behind(verdict, 3, marks[3], record, rows) == "has not come to a collective in that step"
    record[GRAPH] = 1
    assert behind(verdict, 3, marks[3], record, rows) == "has not begun the step"
    at = "was last seen in step 1 at AllReduce 'n6' (ranks 2-3)"
    assert behind(verdict, 3, Mark(0, 1, 6), record, rows) == at
    assert behind(verdict, 3, Mark(0, 2, 2), record, rows) == "was last seen at AllReduce 'n2' (ranks 2-3)"
    record[WAITS] = 1
    assert behind(verdict, 3, marks[3], record, rows) == "waits for other ranks outside of a network"
    record[STATE] = ENDED
    assert behind(verdict, 3, marks[3], record, rows) == "has ended"


def test_ranks_are_shown_short() -> None:
    assert [shown_ranks(r) for r in ((3,), (0, 1, 2), (0, 2, 3))] == ["rank 3", "ranks 0-2", "ranks 0, 2-3"]


AT_NODE = "rank 0 waits in step 3 at TotalOfRanks 'reduce' (ranks 0-2) for rank 1, which has"


MISSING = {
    "halfway": f"{AT_NODE} not come to a collective in that step",
    "wait": f"{AT_NODE} not begun the step",
    "end": f"{AT_NODE} ended",
    "kill": "rank 1 was killed or left without a word in step 3, at TotalOfRanks 'reduce'",
}


def test_a_missing_rank_ends_the_job_with_one_message() -> None:
    """The jobs run at once, since they mostly wait."""
    script = Path(__file__).with_name("missing_rank.py")
    command = [find_mpirun(), "-n", "3", "--oversubscribe", "--bind-to", "none", sys.executable, str(script)]
    environment = {**mpirun_environment(), "PYTHONPATH": str(Path(__file__).parents[3])}
    jobs = [
        subprocess.Popen([*command, how], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for how in MISSING
    ]
    for (how, message), job in zip(MISSING.items(), jobs, strict=True):
        out, err = job.communicate(timeout=HANG)
        over = time.time()
        assert job.returncode != 0
        assert over - float(out.split("event ")[1].split()[0]) < 8 * LOADED, err
        said = [line for line in err.split("\n") if "error: " in line]
        assert said == [f"net.py:12:5: error: {message}"], how
        if "has not" in message:
            assert "note: no rank has moved for 2 s; mspc run --timeout SECONDS waits longer" in err


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
    done = run_process(*command, env=mpirun_environment(), status=1)
    assert re.search(r"for rank 1, which has done nothing for \d+ s after step 5\n", done.stderr)
    assert "error: rank 0 waits in step 6, at " in done.stderr
    assert "  note: its process is " in done.stderr


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


def stopped_looks(stopped: Stopped, start: float, seconds: float) -> dict[int, float]:
    found: dict[int, float] = {}
    for tick in range(int(seconds * 4) + 1):
        found = stopped.look(start + tick / 4)
    return found


def test_a_stopped_rank_is_named_once_for_every_stop(sleeper: int) -> None:
    found = records(2)
    found[0][PID], found[1][PID] = os.getpid(), sleeper
    stopped = Stopped(found)
    assert stopped.to_name(stopped_looks(stopped, 10, NAMED - 1)) == []
    seconds = stopped_looks(stopped, 10 + NAMED - 1, 1.5)
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
    assert list(stopped_looks(stopped, 10, NAMED + 2)) == [1]
    assert stopped.pid(1) == sleeper
    assert asked


def test_who_stood_still_itself_does_not_blame_others_for_the_time(sleeper: int) -> None:
    found = records(1)
    found[0][PID] = sleeper
    stopped = Stopped(found)
    stopped_looks(stopped, 10, 2)
    assert stopped.look(30) == {0: 0.0}


def test_processes_that_are_gone_have_no_state() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert state_of(child.pid) == ""


def test_pauses_end_no_job() -> None:
    done, outcome = pause_job(random.Random(1), 1, 3.0, HANG, 200)
    assert done == 1
    assert (outcome.status, outcome.said) == (0, "")


def test_a_rank_that_stays_stopped_is_named_and_ends_the_job() -> None:
    outcome = stop_job(random.Random(2), 4.0, HANG, latest=1.0)
    assert outcome.status in (1, -signal.SIGSEGV)  # mpirun itself sometimes crashes when it ends a stopped process
    assert 0 < outcome.named < NAMED_WITHIN * LOADED
    assert outcome.over < 4.0 * LOADED
    lines = outcome.said.split("\n")
    assert sum("has been stopped for 3 s" in line and "kill -CONT" in line for line in lines) == 1
    assert sum("error: rank" in line and "has been stopped for" in line for line in lines) == 1
    assert "  note: mspc run --timeout SECONDS waits longer for a rank that is stopped" in lines
