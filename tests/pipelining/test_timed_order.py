"""Orders of a pipeline's work by what its actions take."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from mspc.passes.lib.schedule_checks import check_schedule
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    SCHEDULES,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    actions_of,
    named_schedule,
)  # fmt: skip
from mspc.passes.lib.timed_order import StepsInRow, TimedWork, ordered_by_times
from mspc.passes.lib.timeline import equal_durations


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SCHEDULES)
def test_orders_are_right_and_take_no_more_time_and_memory(name: str, seed: int) -> None:
    r = Random(f"{name} {seed}")
    known = named_schedule(name, r.choice((2, 3, 4)), r.randint(4, 9))
    durations = {key: r.uniform(0.2, 2) for key in equal_durations(known)}
    durations |= {
        (chunk, BACKWARD): durations[chunk, INPUT_GRADIENT] + durations[chunk, WEIGHT_GRADIENT]
        for chunk in range(known.chunks)
    }  # fmt: skip
    work = TimedWork(durations, r.choice((0, 0.1, 0.5)), {0: 1.0, known.stages - 1: 2.0})
    found = ordered_by_times(known, work, budget=200_000)
    assert found == ordered_by_times(known, work, budget=200_000)
    assert check_schedule(found) == []
    assert found.placement == known.placement
    before, behind = work.line(known), work.line(found)
    assert behind.makespan <= before.makespan
    assert all(behind.kept(stage) <= before.kept(stage) for stage in range(known.stages))
    for stage, entries in enumerate(found.entries):
        assert all(part.chunk in known.chunks_of(stage) for part in entries)
        for key in {(part.kind, part.chunk) for part in actions_of(entries)}:
            numbers = [part.micro_batch for part in actions_of(entries) if (part.kind, part.chunk) == key]
            assert all(one < other for one, other in pairwise(numbers)), "sums of gradients are in their order"


def test_parts_that_take_other_times_have_another_order() -> None:
    """Gradients for weights that take longer than the others fill more than one gap."""
    known = named_schedule("zero_bubble_v", 4, 8)
    work = TimedWork(equal_durations(known, 1, 0.9, 1.4), 0.05)
    busy = max(work.line(known).busy(stage) for stage in range(4))
    assert 1 - busy / among_many(known, work) > 0.025
    assert 1 - busy / among_many(ordered_by_times(known, work), work) < 0.02


@pytest.mark.parametrize("more", [0, 2])
def test_a_step_among_many_is_near_its_bound(more: int) -> None:
    """Ahead of its first gradient the last stage can do as many forwards as it may keep, behind its last one as many
    gradients for weights: what else it does stands between a way through all stages and the way back."""
    known = named_schedule("zero_bubble_v", 4, 8)
    work = TimedWork(equal_durations(known, 1, 1.5, 0.75))
    kept = 8 + more
    bound = max(52, (8 + 4.5) + (52 - kept - 0.75 * kept) + 4.5 + 0.75)
    found = ordered_by_times(known, work, more)
    assert check_schedule(found) == []
    line = work.line(found)
    assert max(line.kept(stage) for stage in range(4)) <= kept
    assert line.makespan <= work.line(known).makespan
    assert bound <= among_many(found, work) <= bound + (0, 1)[more > 0]
    assert among_many(known, work) == 56.5


def test_what_chunks_keep_counts() -> None:
    """A chunk that keeps twice as much than others has half the room, one that keeps nothing any."""
    known = named_schedule("zero_bubble_v", 3, 8)
    work = TimedWork(equal_durations(known, 1, 1.4, 0.8), kept={0: 1, 1: 1, 2: 2, 4: 1, 5: 1})
    kept = work.kept_of(known)
    limits = [work.line(known).kept_bytes(stage, kept) for stage in range(3)]
    line = work.line(ordered_by_times(known, work, budget=3_000_000))
    assert all(line.kept_bytes(stage, kept) <= limits[stage] for stage in range(3))


@pytest.mark.parametrize("seed", range(3))
def test_a_step_among_many_is_one_of_many(seed: int) -> None:
    """The times of stages that each begin the next step by themselves, twenty steps in a row."""
    r = Random(seed)
    known = named_schedule(r.choice(("zero_bubble_v", "zero_bubble_h1")), 3, 6)
    durations = {key: r.uniform(0.2, 2) for key in equal_durations(known)}
    work = TimedWork(durations, 0.2, {0: 1.0, 2: 0.5}, {1: [(0, None)], 2: [(0, Action(FORWARD, known.chunks - 1, 5))]})
    steps = StepsInRow(known, work.durations, work.message, work.behind, work.awaited)
    order, free, ends = steps.order(known), [0.0] * 3, [0.0]
    assert steps.makespan(order) == pytest.approx(work.line(known).makespan)
    for _ in range(20):
        free = steps.step(order, free)[0]
        ends.append(max(free))
    assert steps.among_many(order)[0] == pytest.approx((ends[-1] - ends[-7]) / 6, rel=0.002)


def among_many(schedule: Schedule, work: TimedWork) -> float:
    steps = StepsInRow(schedule, work.durations, work.message, work.behind, work.awaited)
    return steps.among_many(steps.order(schedule))[0]


def test_gradients_are_apart_on_all_micro_batches_where_they_are_on_some() -> None:
    known = named_schedule("dual_pipe_v", 2, 4)
    assert any(part.kind == BACKWARD for entries in known.entries for part in actions_of(entries))
    found = ordered_by_times(known, TimedWork(equal_durations(known)))
    kinds = {part.kind for entries in found.entries for part in actions_of(entries)}
    assert kinds == {FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT}


def test_what_is_best_for_equal_times_stays() -> None:
    for name in ("1f1b", "gpipe", "zero_bubble_h1", "zero_bubble_2p"):
        known = named_schedule(name, 4, 8)
        durations = equal_durations(known) | {(chunk, BACKWARD): 2 for chunk in range(4)}
        assert ordered_by_times(known, TimedWork(durations)) == known
