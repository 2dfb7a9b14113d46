"""The search for ranks that wait for ever."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from mspc.runtime.faults.record import (
    CALLS,
    ENDED,
    FAILED,
    MAX_MEMBERS,
    MAX_TEXT,
    RUNNING,
    STATE,
    WAITS,
    WORDS,
    count,
    identity,
    members,
    read_text,
    slot,
    write_text,
)
from mspc.runtime.faults.stopped import CERTAIN_AFTER, OWN_PAUSE, DeadlockDetector, Waiting, for_messages, in_group


def records(number: int) -> list[Any]:
    words = memoryview(bytearray(8 * WORDS * number)).cast("q")
    found = [words[WORDS * r : WORDS * (r + 1)] for r in range(number)]
    for record in found:
        record[STATE] = RUNNING
    return found


def enter(record: Any, *ranks: int, channel: int = 0, calls: int = 0) -> Waiting:
    """The rank has been in `calls` collectives of the group and is in one more."""
    waiting = in_group(record, ranks, channel)
    for _ in range(calls):
        with waiting:
            pass
    waiting.__enter__()
    return waiting


def search(
    found: list[Any], seconds: float = CERTAIN_AFTER + 0.1, stopped: tuple[int, ...] = ()
) -> tuple[int, int] | None:
    """The findings of a rank that looks again and again."""
    stuck = DeadlockDetector(found)
    assert stuck.look(10.0, stopped) is None, "one look is never enough"
    verdict = None
    for tick in range(1, int(seconds / 0.1) + 1):
        verdict = verdict or stuck.look(10.0 + 0.1 * tick, stopped)
    return verdict


@pytest.mark.parametrize("ranks", [(0,), (3, 1, 2), tuple(range(MAX_MEMBERS))])
def test_members_are_read_back(ranks: tuple[int, ...]) -> None:
    (record,) = records(1)
    enter(record, *ranks)
    assert record[WAITS] == 1
    assert members(record) == list(ranks)


def test_leaving_counts_a_call() -> None:
    (record,) = records(1)
    with in_group(record, (0, 1), 0):
        assert record[WAITS] == 1
    assert (record[WAITS], record[CALLS]) == (0, 1)


def test_counts_are_apart_and_a_full_table_gives_none() -> None:
    (record,) = records(1)
    places = [slot(record, identity(str(i))) for i in range(1024)]
    assert len(set(places)) == 1024
    assert slot(record, identity("one more")) is None
    for i, at in enumerate(places):
        record[at] = i
    assert [count(record, identity(str(i))) for i in range(1024)] == list(range(1024))
    assert count(record, identity("one more")) == 0


@pytest.mark.parametrize("text", ["", "x", "reading 'wäg'", "a" * MAX_TEXT, "ä" * MAX_TEXT])
def test_texts_are_read_back(text: str) -> None:
    (record,) = records(1)
    write_text(record, "something that was there before and is longer than what follows")
    write_text(record, text)
    assert read_text(record) == text.encode()[:MAX_TEXT].decode(errors="ignore")


CASES: dict[str, tuple[dict[int, Sequence[int]], dict[int, int], tuple[int, int] | None]] = {
    "for a rank that has ended": ({2: (0, 1, 2)}, {1: ENDED}, (2, 1)),
    "for one that reports its failure itself": ({0: (0, 1)}, {1: FAILED}, None),
    "for one that computes": ({0: (0, 1), 1: (1, 2)}, {}, None),
    "all in one collective, however long it takes": (dict.fromkeys(range(3), range(3)), {}, None),
    "in a circle": ({0: (0, 1), 1: (1, 2), 2: (2, 0)}, {}, (0, 1)),
    "for a circle": ({0: (0, 1, 2, 3), 1: (1, 2), 2: (2, 3), 3: (3, 1)}, {}, (0, 1)),
    "for a group too large to be written down": ({0: range(MAX_MEMBERS + 1)}, {1: ENDED}, None),
}
"""Groups in whose collectives ranks wait, states of others, and the rank that waits in vain, with one it waits for."""


@pytest.mark.parametrize("case", CASES)
def test_who_waits_in_vain(case: str) -> None:
    groups, states, verdict = CASES[case]
    found = records(4)
    for rank, group in groups.items():
        enter(found[rank], *group)
    for rank, state in states.items():
        found[rank][STATE] = state
    assert search(found, 60) == verdict


def test_a_rank_that_ended_behind_the_collective_is_not_missed() -> None:
    found = records(2)
    enter(found[0], 0, 1)
    enter(found[1], 0, 1).__exit__()
    found[1][STATE] = ENDED
    assert search(found) is None


def test_progress_in_between_resets_the_clock() -> None:
    found = records(2)
    found[1][STATE] = ENDED
    enter(found[0], 0, 1)
    stuck = DeadlockDetector(found)
    for tick in range(12):
        assert stuck.look(10 + 0.1 * tick) is None
    found[0][CALLS] += 1
    for tick in range(12, 12 + int(CERTAIN_AFTER / 0.1)):
        assert stuck.look(10 + 0.1 * tick) is None
    assert stuck.look(10 + 1.2 + CERTAIN_AFTER + 0.1) == (0, 1)


def test_who_stood_still_itself_begins_anew() -> None:
    found = records(2)
    found[1][STATE] = ENDED
    enter(found[0], 0, 1)
    stuck = DeadlockDetector(found)
    assert stuck.look(10.0) is None
    assert stuck.look(10.0 + OWN_PAUSE + CERTAIN_AFTER) is None


@pytest.mark.parametrize("behind", [0, 1])
def test_a_rank_that_stands_still_in_a_call_that_others_have_left(behind: int) -> None:
    """Its record still says that it waits; the others have begun the next collective and wait for it."""
    found = records(3)
    for rank, record in enumerate(found):
        enter(record, 0, 1, 2, calls=0 if rank == behind else 1)
    assert search(found, 60) is None


def test_ranks_in_different_channels_of_one_group() -> None:
    found = records(2)
    enter(found[0], 0, 1)
    enter(found[1], 0, 1, channel=1)
    assert search(found) == (0, 1)
    assert search(found, stopped=(1,)) is None, "nothing is known of a rank whose process is stopped"


def test_a_message_that_was_sent_is_not_missed() -> None:
    found = records(2)
    for_messages(found[0], 0, (1,), (), 3).__enter__()
    found[0][WAITS] = 0
    found[0][STATE] = ENDED
    for_messages(found[1], 1, (), (0,), 3).__enter__()
    assert search(found) is None


@pytest.mark.parametrize(("channel", "of"), [(4, 0), (3, 2)])
def test_messages_of_another_channel_or_rank_do_not_count(channel: int, of: int) -> None:
    found = records(3)
    for_messages(found[0], 0, (1,), (), 3).__enter__()
    found[0][WAITS] = 0
    found[0][STATE] = found[2][STATE] = ENDED
    for_messages(found[1], 1, (), (of,), channel).__enter__()
    assert search(found) == (1, of)


def test_ranks_that_both_wait_for_a_message_of_the_other() -> None:
    found = records(2)
    for rank in (0, 1):
        for_messages(found[rank], rank, (), (1 - rank,), 0).__enter__()
    assert search(found) == (0, 1)


def test_an_exchange_where_all_have_come() -> None:
    found = records(3)
    for rank in range(3):
        others = tuple(r for r in range(3) if r != rank)
        for_messages(found[rank], rank, others, others, 0).__enter__()
    assert search(found, 60) is None


def test_no_verdict_in_any_state_of_ranks_that_call_alike() -> None:
    """Three ranks in one sequence of calls, each stopped anywhere in it: somebody can always go on."""
    sequence: list[Any] = [
        lambda rec, r: in_group(rec, (0, 1, 2), 0),
        lambda rec, r: in_group(rec, (0, 1), 0) if r < 2 else None,
        lambda rec, r: for_messages(rec, r, ((r + 1) % 3,), ((r + 2) % 3,), 5),
        lambda rec, r: in_group(rec, (1, 2), 0) if r else None,
    ] * 2
    for places in itertools.product(range(len(sequence)), repeat=3):
        if not _reachable(sequence, places):
            continue
        found = records(3)
        for rank, place in enumerate(places):
            waits = [call(found[rank], rank) for call in sequence[: place + 1]]
            for waiting in filter(None, waits[:-1]):
                with waiting:
                    pass
            if waits[-1] is not None:
                waits[-1].__enter__()
        assert search(found, CERTAIN_AFTER + 0.2) is None, places


def _reachable(sequence: list[Any], places: tuple[int, ...]) -> bool:
    """Whether ranks that wait at these places of the sequence can have come there: everybody whom a call before needs
    has begun it."""
    needs: list[dict[int, set[int]]] = [
        {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}, {0: {1}, 1: {0}}, {0: {2}, 1: {0}, 2: {1}}, {1: {2}, 2: {1}},
    ] * 2  # fmt: skip
    for rank, place in enumerate(places):
        for call in range(place):
            if any(places[other] < call for other in needs[call].get(rank, ())):
                return False
    return True
