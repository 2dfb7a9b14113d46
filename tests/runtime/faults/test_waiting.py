"""The search for ranks that wait for ever."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.runtime.faults.waiting import (
    CALLS,
    ENDED,
    ENDED_PATIENCE,
    MOST_MEMBERS,
    RUNNING,
    STATE,
    STUCK_PATIENCE,
    WAITS,
    WORDS,
    Stuck,
    Waiting,
    members,
)

LATER = 10 + ENDED_PATIENCE + STUCK_PATIENCE


def records(count: int) -> list[Any]:
    words = memoryview(bytearray(8 * WORDS * count)).cast("q")
    found = [words[WORDS * r : WORDS * (r + 1)] for r in range(count)]
    for record in found:
        record[STATE] = RUNNING
    return found


def enter(record: Any, *ranks: int, channel: int = 0, meets: bool = True, calls: int = 0) -> None:
    waiting = Waiting(record, ranks, meets, channel)
    for _ in range(calls):
        with waiting:
            pass
    waiting.__enter__()


def search(found: list[Any]) -> tuple[int, int] | None:
    stuck = Stuck(found)
    assert stuck.look(10.0) is None, "one look is never enough"
    return stuck.look(LATER)


@pytest.mark.parametrize("ranks", [(0,), (3, 1, 2), tuple(range(MOST_MEMBERS))])
def test_members_are_read_back(ranks: tuple[int, ...]) -> None:
    (record,) = records(1)
    enter(record, *ranks)
    assert record[WAITS] == 1
    assert members(record, 4096) == list(ranks)


def test_groups_too_large_to_write_down_count_as_all_ranks() -> None:
    (record,) = records(1)
    enter(record, *range(MOST_MEMBERS + 1))
    assert members(record, 300) == list(range(300))


def test_leaving_counts_a_call() -> None:
    (record,) = records(1)
    with Waiting(record, (0, 1), True, 0):
        assert record[WAITS] == 1
    assert (record[WAITS], record[CALLS]) == (0, 1)


def test_a_rank_that_waits_for_an_ended_one() -> None:
    found = records(3)
    enter(found[2], 0, 1, 2)
    found[1][STATE] = ENDED
    assert search(found) == (2, 1)


def test_progress_in_between_resets_the_clock() -> None:
    found = records(2)
    found[1][STATE] = ENDED
    enter(found[0], 0, 1)
    stuck = Stuck(found)
    assert stuck.look(10.0) is None
    found[0][CALLS] += 1
    assert stuck.look(LATER) is None
    assert stuck.look(LATER + ENDED_PATIENCE / 2) is None
    assert stuck.look(LATER + 2 * ENDED_PATIENCE) == (0, 1)


def test_ranks_in_one_collective_are_not_stuck_however_long_it_takes() -> None:
    found = records(3)
    for record in found:
        enter(record, 0, 1, 2)
    assert search(found) is None


def test_a_rank_that_computes_is_waited_for() -> None:
    found = records(3)
    enter(found[0], 0, 1)
    enter(found[1], 1, 2)
    assert search(found) is None


@pytest.mark.parametrize("other", [{"channel": 1}, {"calls": 1}])
def test_ranks_in_different_collectives_of_one_group(other: dict[str, int]) -> None:
    found = records(2)
    enter(found[0], 0, 1)
    enter(found[1], 0, 1, **other)
    assert search(found) == (0, 1)


def test_ranks_that_wait_in_a_circle() -> None:
    found = records(3)
    for r in range(3):
        enter(found[r], r, (r + 1) % 3)
    assert search(found) == (0, 1)


def test_a_subgroup_in_its_collective_may_go_on() -> None:
    found = records(4)
    for r in (0, 1, 2):
        enter(found[r], 0, 1, 2, 3)
    enter(found[3], 3, 2, meets=False)
    assert search(found) is None
