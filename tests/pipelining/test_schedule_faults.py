"""Random schedules with a planted fault are refused, every one; right ones are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from mspc.ir.diagnostics import Location
from mspc.passes.lib.schedule_tables import read_table, write_table
from mspc.passes.lib.schedules import Action, Schedule
from mspc.passes.lib.timeline import check_schedule, equal_durations, timeline
from tests.random_schedules import SCHEDULE_FAULTS, exchanged, random_schedule, runs
from tests.shares import share_of

DRAWN = share_of(800)
MISSING, DOUBLED = "is missing", "is there (twice|beside)"
UNKNOWN, WRONG_STAGE = "no kind|is of no", "but its chunk is on"
TOO_EARLY, CYCLE = "^stage .* before .* is there$", "^stages .* wait for each other$"
FOUND = {
    "drop_action": (MISSING,),
    "double_action": (DOUBLED, WRONG_STAGE),
    "exchange_actions": (TOO_EARLY, CYCLE),
    "exchange_over_stages": (TOO_EARLY, CYCLE),
    "change_micro_batch": (UNKNOWN, DOUBLED, MISSING),
    "change_chunk": (UNKNOWN, WRONG_STAGE, DOUBLED, MISSING),
    "change_kind": (DOUBLED, MISSING),
}
"""Patterns of the messages of each fault, one of which there must be."""


def test_right_schedules_are_not_refused() -> None:
    """They have times, too, and are read as they were written."""
    for number in range(DRAWN):
        schedule = random_schedule(Random(number))
        assert check_schedule(schedule) == [], number
        made = timeline(schedule, equal_durations(schedule), message=0.5)
        assert [len(spans) for spans in made.spans] == [len(entries) for entries in schedule.entries]
        assert read_table(write_table(schedule), "random").schedule.entries == schedule.entries


@pytest.mark.parametrize("fault", SCHEDULE_FAULTS, ids=lambda fault: fault.__name__)
def test_faults_of_schedules_are_refused(fault: Callable[[Random, Schedule], Schedule]) -> None:
    for number in range(DRAWN):
        draw = Random(number)
        found = check_schedule(fault(draw, random_schedule(draw)))
        assert any(re.search("|".join(FOUND[fault.__name__]), error.message) for error in found), number


def test_exchanges_are_refused_where_the_judge_says_so() -> None:
    told = {True: 0, False: 0}
    for number in range(DRAWN):
        draw = Random(number)
        schedule = exchanged(draw, random_schedule(draw))
        assert (check_schedule(schedule) == []) == runs(schedule), number
        told[runs(schedule)] += 1
    assert min(told.values()) > DRAWN // 20


def test_stages_that_wait_for_each_other_are_among_them() -> None:
    """At least two actions can be exchanged so in one of five schedules."""
    fault = next(fault for fault in SCHEDULE_FAULTS if fault.__name__ == "exchange_over_stages")
    circles = 0
    for number in range(DRAWN):
        draw = Random(number)
        found = check_schedule(fault(draw, random_schedule(draw)))
        circles += bool(found) and all(re.search(CYCLE, error.message) for error in found)
    assert circles > DRAWN // 5


def three_stages(*orders: str) -> Schedule:
    """Return a schedule of one micro-batch from the texts of its stages' actions, such as `0F 0B`."""
    entries = tuple(tuple(Action(each[1], int(each[0]), 0) for each in order.split()) for order in orders)
    return Schedule("mine", 1, (0, 1, 2), entries)


def test_stages_of_a_circle_are_named() -> None:
    """The stages 1 and 2 wait for each other; stage 0, which waits for them, is not in the circle."""
    schedule = three_stages("0F 0B", "1B 1F", "2F 2B")
    places = [[Location("mine.csv", stage) for _ in order] for stage, order in enumerate(schedule.entries)]
    early, circle = check_schedule(schedule, places)
    assert str(early) == (
        "mine.csv:1: error: stage 1 runs 1B0 before 'activation of chunk 1' of micro-batch 0 is there\n"
        "  note: stage 1 runs 1F0, at mine.csv:1"
    )
    assert str(circle) == (
        "mine.csv:1: error: stages 1 and 2 wait for each other\n"
        "  note: stage 1 receives 'gradient of chunk 2' of micro-batch 0 from stage 2, and stage 2 sends it later, at "
        "mine.csv:1\n"
        "  note: stage 2 receives 'activation of chunk 1' of micro-batch 0 from stage 1, and stage 1 sends it later, "
        "at mine.csv:2"
    )
