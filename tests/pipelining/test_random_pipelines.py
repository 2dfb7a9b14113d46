"""Random networks in stages have the numbers of one device; a few of each way of training.

Right random schedules, as tables of a user's, run to their end under mpirun and give what one device gives.
Timelines of schedules as text.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pipelines.runs import can_be_run, difference, drawn, wrong_ones
from mspc.output.schedule_text import schedule_text, time_text
from mspc.passes.lib.schedules import SCHEDULES, named_schedule
from mspc.passes.lib.timeline import ScheduleTimeline, equal_durations, timeline
from tests.judged_seeds import EQUAL
from tests.pipelining.drawn_network import WAYS, DrawnNetwork
from tests.sharded_beside_one import beside_one_device
from tests.shares import share_of


@pytest.mark.share(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(share_of(12)))
def test_networks_in_stages_are_those_of_one_device(number: int, way: str) -> None:
    outcome = beside_one_device(7000 + number, DrawnNetwork(7000 + number, only=(way,)))
    assert outcome.kind == EQUAL, outcome.message


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(share_of(12)))
def test_random_numbers_are_those_of_one_stage(number: int) -> None:
    network = DrawnNetwork(7500 + number, only=[way for way in WAYS if way != "inference"], draws=True)
    outcome = beside_one_device(7500 + number, network)
    assert outcome.kind == EQUAL, outcome.message


def test_sums_that_change_their_layout_in_the_loop() -> None:
    """Gradients are added up in slices, and carried as a whole."""
    outcome = beside_one_device(3026, DrawnNetwork(3026))
    assert outcome.kind == EQUAL, outcome.message


def test_schedules_in_one_start_of_two_ranks(tmp_path: Path) -> None:
    schedules = drawn(share_of(12, 3), stages=(2,))
    assert len({each.chunks for each in schedules.values()}) > 1
    assert wrong_ones(schedules, tmp_path, (2,)) == {}


def test_what_is_run_and_what_is_told_of_it() -> None:
    right = next(iter(drawn(1, stages=(2,)).values()))
    assert can_be_run(right)
    assert not can_be_run(replace(right, micro_batches=1))
    assert not can_be_run(replace(right, placement=right.placement[::-1]))
    assert difference({"w": np.array([1.0, 200.0])}, {"w": np.array([1.0, 201.0])}) == 0.005
    assert difference({"w": np.ones(2)}, {"v": np.ones(2)}) == float("inf")


def made(name: str, stages: int, micro_batches: int, message: float = 0) -> ScheduleTimeline:
    schedule = named_schedule(name, stages, micro_batches)
    return timeline(schedule, equal_durations(schedule), message)


def test_text() -> None:
    assert schedule_text(made("1f1b", 2, 3)).splitlines() == [
        "1f1b: 2 stages, 3 micro-batches, a step takes 12 s, idle 25.0%",
        "stage 0  F0 F1 ......B0    F2 B1    ...B2      idle 25.0%, keeps 2",
        "stage 1     F0 B0    F1 B1    F2 B2            idle 25.0%, keeps 1",
    ]


def test_text_of_several_chunks() -> None:
    """Both numbers of a step are told where they differ."""
    assert schedule_text(made("zero_bubble_v", 2, 3)).splitlines() == [
        "zero_bubble_v: 2 stages, 4 chunks, 3 micro-batches, a step takes 19 s, idle 5.3%; if stages begin the next "
        "one by themselves 18 s, idle 0.0%",
        "stage 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 0I1 0W1 0I2 3W2 0W2       idle 5.3%, keeps 4",
        "stage 1      1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 1F2 2F2 2I1 1I1 2I2 1I2 2W1 1W1 2W2 1W2   idle 5.3%, keeps 4",
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_label_is_in_the_text(name: str) -> None:
    """Unless there is no room, where kinds are left."""
    shown = made(name, 4, 12)
    text = schedule_text(shown)
    for spans in shown.spans:
        for span in spans:
            several, action = shown.schedule.chunks > 4, span.action
            assert (str(action) if several else f"{action.kind}{action.micro_batch}") in text
    narrow = schedule_text(shown, 60).splitlines()[1:]
    assert {len(row.partition("  idle")[0]) for row in narrow} == {len("stage 0  ") + 60}


def test_updates_are_shown_and_what_they_wait_for() -> None:
    schedule = named_schedule("1f1b", 2, 3)
    shown = timeline(schedule, equal_durations(schedule), behind={0: 1, 1: 2}, awaited={1: {(0, None)}})
    assert schedule_text(shown).splitlines() == [
        "1f1b: 2 stages, 3 micro-batches, a step takes 14 s, idle 25.0%; if stages begin the next one by themselves "
        "13 s, idle 19.2%",
        "stage 0  F0 F1 ......B0    F2 B1    ...B2    U       idle 28.6%, keeps 2",
        "stage 1     F0 B0    F1 B1    F2 B2    ......U       idle 21.4%, keeps 1",
    ]


def test_nothing_takes_no_time() -> None:
    schedule = named_schedule("gpipe", 2, 2)
    shown = timeline(schedule, equal_durations(schedule, 0, 0, 0))
    assert schedule_text(shown).startswith("gpipe: 2 stages, 2 micro-batches, a step takes 0 s, idle 0.0%\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (12, "12 s"), (1.23456, "1.235 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us")]
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
