"""Who is missing when GPUs wait in a collective: the decision alone, and jobs whose GPUs are played by the test."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.ops.collective.collectives import AllGather, AllReduce, NeighborExchange
from mspc.ops.collective.point_to_point import Receive, Send
from mspc.runtime.faults.record import ENDED, GRAPH, MARK, STATE, STEP, WAITS
from mspc.runtime.faults.stopped import (
    END,
    ENDED_PATIENCE,
    Mark,
    Stalled,
    WaitingNode,
    behind,
    find,
    meetings,
    packed,
    shown_ranks,
    unpacked,
)
from tests.conftest import HANG, LOADED
from tests.runtime.faults.test_waiting import records
from tests.runtime.graphs import GraphMaker

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
    assert [shown_ranks(r) for r in ((3,), (0, 1, 2), (0, 2))] == ["rank 3", "ranks 0-2", "ranks 0, 2"]


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
