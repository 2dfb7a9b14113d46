"""Right random schedules, as tables of a user's, run to their end under mpirun and give what one device gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.pipelines.runs import can_be_run, difference, drawn, wrong_ones
from tests.shares import share_of


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
