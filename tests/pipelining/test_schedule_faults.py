"""Random schedules and programs with a planted fault are refused, every one; right ones are not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from mspc.passes.lib.schedule_checks import (
    CYCLE,
    DOUBLED,
    MISSING,
    NO_PARTNER,
    OTHER_ORDER,
    OTHER_SIZE,
    SAME_KEY,
    TOO_EARLY,
    UNKNOWN,
    WRONG_STAGE,
    check,
    check_schedule,
    programs_of,
)  # fmt: skip
from mspc.passes.lib.schedule_tables import read_table, write_table
from mspc.passes.lib.schedules import Schedule
from mspc.passes.lib.timeline import equal_durations, timeline
from tests.random_schedules import (
    MESSAGE_FAULTS,
    SCHEDULE_FAULTS,
    Programs,
    exchanged,
    random_programs,
    random_schedule,
    runs,
)  # fmt: skip
from tests.shares import share_of

DRAWN = share_of(800)
KINDS = {
    "drop_action": {MISSING},
    "double_action": {DOUBLED, WRONG_STAGE},
    "exchange_actions": {TOO_EARLY, CYCLE},
    "exchange_over_stages": {TOO_EARLY, CYCLE},
    "change_micro_batch": {UNKNOWN, DOUBLED, MISSING},
    "change_chunk": {UNKNOWN, WRONG_STAGE, DOUBLED, MISSING},
    "change_kind": {DOUBLED, MISSING},
    "drop_message": {NO_PARTNER},
    "double_message": {SAME_KEY},
    "change_message": {NO_PARTNER, SAME_KEY},
    "change_size": {OTHER_SIZE},
    "change_partner": {NO_PARTNER},
    "exchange_messages": {OTHER_ORDER},
    "plant_circle": {CYCLE},
}
"""What is found at least of each fault, one of these."""


def test_right_schedules_are_not_refused() -> None:
    """They have times, too, and are read as they were written."""
    for number in range(DRAWN):
        schedule = random_schedule(Random(number))
        assert check_schedule(schedule) == [], number
        assert check(programs_of(schedule, in_order=True)) == [], number
        made = timeline(schedule, equal_durations(schedule), message=0.5)
        assert [len(spans) for spans in made.spans] == [len(entries) for entries in schedule.entries]
        assert read_table(write_table(schedule), "random").schedule.entries == schedule.entries


@pytest.mark.parametrize("fault", SCHEDULE_FAULTS, ids=lambda fault: fault.__name__)
def test_faults_of_schedules_are_refused(fault: Callable[[Random, Schedule], Schedule]) -> None:
    for number in range(DRAWN):
        draw = Random(number)
        found = {problem.kind for problem in check_schedule(fault(draw, random_schedule(draw)))}
        assert found & KINDS[fault.__name__], number


def test_exchanges_are_refused_where_the_judge_says_so() -> None:
    told = {True: 0, False: 0}
    for number in range(DRAWN):
        draw = Random(number)
        schedule = exchanged(draw, random_schedule(draw))
        assert (check_schedule(schedule) == []) == runs(schedule), number
        told[runs(schedule)] += 1
    assert min(told.values()) > DRAWN // 20


def test_stages_that_wait_for_each_other_are_among_them() -> None:
    """Of one in five schedules at least two actions can be exchanged so."""
    fault = next(fault for fault in SCHEDULE_FAULTS if fault.__name__ == "exchange_over_stages")
    circles = 0
    for number in range(DRAWN):
        draw = Random(number)
        circles += {problem.kind for problem in check_schedule(fault(draw, random_schedule(draw)))} == {CYCLE}
    assert circles > DRAWN // 5


def test_right_programs_are_not_refused() -> None:
    for number in range(DRAWN):
        assert check(random_programs(Random(number))) == [], number


@pytest.mark.parametrize("fault", MESSAGE_FAULTS, ids=lambda fault: fault.__name__)
def test_faults_of_messages_are_refused(fault: Callable[[Random, Programs], Programs | None]) -> None:
    planted = 0
    for number in range(DRAWN):
        draw = Random(number)
        programs = fault(draw, random_programs(draw))
        if programs is not None:
            planted += 1
            assert {problem.kind for problem in check(programs)} & KINDS[fault.__name__], number
    assert planted > DRAWN // 2
