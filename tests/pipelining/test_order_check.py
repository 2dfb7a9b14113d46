"""Programs that would hang, read too early or mistake a message are found, and both sides are named."""

from __future__ import annotations

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.location import Location
from mspc.passes.lib.schedule_checks import (
    CYCLE,
    NO_PARTNER,
    OTHER_ORDER,
    OTHER_SIZE,
    SAME_KEY,
    TOO_EARLY,
    Event,
    ReceiveEvent,
    SendEvent,
    WorkEvent,
    check,
    programs_of,
    require_order,
)  # fmt: skip
from mspc.passes.lib.schedules import SCHEDULES, THERE_AND_BACK, named_schedule

A = WorkEvent("a", makes=(("x", 0), ("x", 1)))


def line(number: int) -> Location:
    return Location("net.py", number)


def kinds(programs: list[list[Event]], **options: bool) -> list[str]:
    return [problem.kind for problem in check(programs, **options)]


def test_a_right_program() -> None:
    programs: list[list[Event]] = [
        [
            A,
            SendEvent(1, "x", 0, 8),
            SendEvent(1, "x", 1, 8),
            ReceiveEvent(1, "y", 0),
            WorkEvent("c", reads=(("y", 0),)),
        ],
        [
            ReceiveEvent(0, "x", 0, 8),
            WorkEvent("b", (("x", 0),), (("y", 0),)),
            ReceiveEvent(0, "x", 1, 8),
            SendEvent(0, "y", 0),
        ],
    ]
    assert check(programs) == check(programs, sends_wait=True) == []


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zero_bubble_2p", "zero_bubble_v", "dual_pipe_v"])
def test_programs_of_schedules_are_right(name: str) -> None:
    assert check(programs_of(named_schedule(name, 4, 8)), in_order=False) == []


@pytest.mark.parametrize("name", SCHEDULES)
def test_messages_of_schedules_can_be_received_in_order(name: str) -> None:
    """Of schedules with one chunk, and in rounds, they are read in the order in which they are sent; those that go
    there and back have some that are received earlier than they are read."""
    for stages, micro_batches in ((2, 4), (3, 8), (4, 11)):
        schedule = named_schedule(name, stages, micro_batches)
        kept = programs_of(schedule, in_order=True)
        assert check(kept) == []
        assert (kept == programs_of(schedule)) == (check(programs_of(schedule)) == [])
        if name not in THERE_AND_BACK:
            assert kept == programs_of(schedule)
    assert name not in THERE_AND_BACK or set(kinds(programs_of(named_schedule(name, 4, 8)))) == {OTHER_ORDER}


def test_gpipe_alone_runs_where_sends_wait() -> None:
    """1F1B has a forward and a backward on the way towards each other."""
    assert check(programs_of(named_schedule("gpipe", 4, 8)), sends_wait=True) == []
    assert kinds(programs_of(named_schedule("1f1b", 2, 4)), sends_wait=True) == [CYCLE]


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ([[A, SendEvent(1, "x", 0)], []], "stage 0 sends 'x' of micro-batch 0 to stage 1, which does not receive it"),
        ([[], [ReceiveEvent(0, "x", 0)]], "stage 1 receives 'x' of micro-batch 0 from stage 0, which does not send it"),
        ([[A, SendEvent(0, "x", 0)], []], "stage 0 sends 'x' of micro-batch 0 to stage 0, which is itself"),
        ([[A, SendEvent(2, "x", 0)], []], "to stage 2, but there are stages 0 to 1"),
        ([[ReceiveEvent(-1, "x", 0)], []], "from stage -1, but there are stages 0 to 1"),
    ],
)
def test_messages_without_their_partner(programs: list[list[Event]], message: str) -> None:
    (found,) = check(programs)
    assert found.kind == NO_PARTNER
    assert message in found.message


def test_another_micro_batch_is_two_messages_without_partners() -> None:
    programs: list[list[Event]] = [[A, SendEvent(1, "x", 0)], [ReceiveEvent(0, "x", 1)]]
    assert kinds(programs) == [NO_PARTNER, NO_PARTNER]


def test_messages_that_could_change_places() -> None:
    programs: list[list[Event]] = [
        [A, SendEvent(1, "x", 0, location=line(3)), SendEvent(1, "x", 0, location=line(4))],
        [ReceiveEvent(0, "x", 0, location=line(8)), ReceiveEvent(0, "x", 0, location=line(9))],
    ]
    (found,) = check(programs)
    assert found.kind == SAME_KEY
    assert str(found.error()).startswith(
        "net.py:3: error: messages of 'x' of micro-batch 0 could change places: stage 0 sends it 2 times, and stage 1 "
        "receives it 2 times\n"
    )
    assert [note.rpartition(" ")[2] for note in found.notes] == ["net.py:4", "net.py:8", "net.py:9"]


def test_orders_that_differ() -> None:
    programs: list[list[Event]] = [
        [A, SendEvent(1, "x", 0, location=line(3)), SendEvent(1, "x", 1, location=line(4))],
        [ReceiveEvent(0, "x", 1, location=line(8)), ReceiveEvent(0, "x", 0, location=line(9))],
    ]
    (found,) = check(programs)
    assert found.kind == OTHER_ORDER
    assert str(found.error()) == (
        "net.py:3: error: stage 0 sends 'x' of micro-batch 0 to stage 1 where that stage receives 'x' of "
        "micro-batch 1\n"
        "  note: stage 1 receives 'x' of micro-batch 1 from stage 0 as its next message from there, at net.py:8"
    )
    assert check(programs, in_order=False) == []


def test_sizes_that_differ() -> None:
    programs: list[list[Event]] = [[A, SendEvent(1, "x", 0, 8)], [ReceiveEvent(0, "x", 0, 4)]]
    (found,) = check(programs)
    assert found.kind == OTHER_SIZE
    assert "in 8 bytes" in found.message
    assert "in 4 bytes" in found.notes[0]


def test_values_that_are_read_too_early() -> None:
    programs: list[list[Event]] = [
        [SendEvent(1, "x", 0, location=line(2)), WorkEvent("a", makes=(("x", 0),), location=line(3))],
        [WorkEvent("b", reads=(("x", 0), ("z", 0)), location=line(7)), ReceiveEvent(0, "x", 0, location=line(8))],
    ]
    found = check(programs)
    assert [problem.kind for problem in found] == [TOO_EARLY] * 3
    assert str(found[0].error()) == (
        "net.py:2: error: stage 0 sends 'x' of micro-batch 0 to stage 1 before 'x' of micro-batch 0 is there\n"
        "  note: stage 0 runs a, at net.py:3"
    )
    assert "before 'x' of micro-batch 0 is there" in found[1].message
    assert "'z' of micro-batch 0 is never there" in found[2].message


def test_work_does_not_read_what_it_makes_itself() -> None:
    assert kinds([[WorkEvent("a", (("x", 0),), (("x", 0),))]]) == [TOO_EARLY]


def test_stages_that_wait_for_each_other() -> None:
    """All three, one for the next; the fourth, which waits for them, is not in the circle."""
    programs: list[list[Event]] = [
        [ReceiveEvent((stage + 1) % 3, "x", 0, location=line(stage)), SendEvent((stage - 1) % 3, "x", 0)]
        for stage in range(3)
    ]
    programs[0].append(SendEvent(3, "x", 0))
    programs.append([ReceiveEvent(0, "x", 0)])
    (found,) = check(programs)
    assert found.kind == CYCLE
    assert str(found.error()) == (
        "net.py:0: error: stages 0, 1 and 2 wait for each other\n"
        "  note: stage 0 receives 'x' of micro-batch 0 from stage 1, and stage 1 sends it later, at net.py:0\n"
        "  note: stage 1 receives 'x' of micro-batch 0 from stage 2, and stage 2 sends it later, at net.py:1\n"
        "  note: stage 2 receives 'x' of micro-batch 0 from stage 0, and stage 0 sends it later, at net.py:2"
    )


def test_two_circles_are_two_problems() -> None:
    programs: list[list[Event]] = [
        [ReceiveEvent(stage ^ 1, "x", 0), SendEvent(stage ^ 1, "x", 0)] for stage in range(4)
    ]
    assert kinds(programs) == [CYCLE, CYCLE]


def test_sends_that_wait() -> None:
    """Two stages that send first hang where a send lasts until its receiver is there, and nowhere else."""
    programs: list[list[Event]] = [[A, SendEvent(stage ^ 1, "x", stage), ReceiveEvent(stage ^ 1, "x", 1 - stage)]
                                   for stage in range(2)]  # fmt: skip
    assert check(programs) == []
    (found,) = check(programs, sends_wait=True)
    assert found.message == "stages 0 and 1 wait for each other where a send waits for its receiver"
    assert "stage 1 receives it later" in found.notes[0]


def test_a_missing_message_is_no_circle() -> None:
    programs: list[list[Event]] = [[ReceiveEvent(1, "x", 0), A, SendEvent(1, "x", 0)], [ReceiveEvent(0, "x", 0)]]
    assert kinds(programs) == [NO_PARTNER]


def test_all_problems_are_raised_together() -> None:
    with pytest.raises(MspcError, match="2 errors"):
        require_order([[A, SendEvent(1, "x", 0)], [ReceiveEvent(0, "x", 1)]])
    require_order([[A]])
