"""Copies to the host and back pace a schedule: what waits for them does so in order, and all else hides."""

from __future__ import annotations

import pytest

from mspc.passes.lib.schedules import FORWARD, Schedule, named_schedule
from mspc.passes.lib.timeline import ScheduleTimeline, Task, TaskCopies, copies_of, equal_durations, leaving, timeline

STAGES, PARTS = 4, 12


def paced(schedule: Schedule, seconds: float, waits: bool = True) -> ScheduleTimeline:
    """Forwards and both gradients take one each, copies one way so long."""
    copies: dict[Task, TaskCopies] = {}
    for stage in range(STAGES):
        own = dict.fromkeys(schedule.chunks_of(stage), seconds)
        copies |= copies_of(schedule, stage, own, waits)
    return timeline(schedule, equal_durations(schedule), overlap=None, copies=copies)


def made(name: str) -> Schedule:
    return named_schedule(name, STAGES, PARTS, None)


@pytest.mark.parametrize("waits", [True, False])
def test_copies_of_a_micro_batch_hide_behind_the_work_on_others(waits: bool) -> None:
    schedule = made("1f1b")
    alone = timeline(schedule, equal_durations(schedule), overlap=None).makespan
    assert paced(schedule, 2.5, waits).makespan == pytest.approx(alone)
    assert paced(schedule, 4, waits).makespan > alone + 1, "the bus has no time for so much"


def test_forwards_wait_for_all_but_the_last_that_leave() -> None:
    spans = [span for span in paced(made("gpipe"), 3).spans[0] if span.entry.kind == FORWARD]  # type: ignore[union-attr]  # actions by themselves
    assert [span.start for span in spans[:5]] == [0, 1, 4, 7, 10]
    assert [span.start for span in paced(made("gpipe"), 3, False).spans[0][:5]] == [0, 1, 2, 3, 4]


def test_what_comes_back_at_once_stays() -> None:
    schedule = made("1f1b")
    assert not [*leaving(schedule, STAGES - 1)]
    assert len([*leaving(schedule, 0)]) == PARTS - 2, "behind the last two there are no forwards"


def test_fetches_run_one_behind_another_from_their_places_on() -> None:
    schedule = named_schedule("gpipe", 1, 2, None)
    copied = [(0, 0, 0), (0, 1, 0)]
    copies = {
        ("F", 0, 0): TaskCopies(left=[(copied[0], 5.0)]),
        ("F", 0, 1): TaskCopies(left=[(copied[1], 1.0)]),
        ("B", 0, 0): TaskCopies(ahead=[(copied[0], 0.0), (copied[0], 2.0), (copied[1], 3.0)], read=copied[:1]),
        ("B", 0, 1): TaskCopies(read=copied[1:]),
    }
    spans = timeline(schedule, equal_durations(schedule), overlap=None, copies=copies).spans[0]
    # The first is gone at 6 and back at 8, the second comes until 11.
    assert [(str(span.entry), span.start) for span in spans] == [("0F0", 0), ("0F1", 1), ("0B0", 8), ("0B1", 11)]


def test_copies_of_other_chunks_are_alike() -> None:
    own = TaskCopies([((0, 3, 1), 0.0)], [(0, 2, 0)], [((0, 4, 0), 1.5)])
    assert own.like({0: 7}) == TaskCopies([((7, 3, 1), 0.0)], [(7, 2, 0)], [((7, 4, 0), 1.5)])
