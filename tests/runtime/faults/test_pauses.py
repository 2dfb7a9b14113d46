"""Paused ranks end no job; a rank that stays stopped is named and ends it."""

from __future__ import annotations

import random

from tests.conftest import HANG, LOADED
from tests.runtime.faults.pauses import NAMED_WITHIN, pause_job, stop_job


def test_pauses_end_no_job() -> None:
    done, outcome = pause_job(random.Random(1), 1, 3.0, HANG, 200)
    assert done == 1
    assert (outcome.status, outcome.said) == (0, "")


def test_a_rank_that_stays_stopped_is_named_and_ends_the_job() -> None:
    outcome = stop_job(random.Random(2), 4.0, HANG, latest=1.0)
    assert outcome.status == 1
    assert 0 < outcome.named < NAMED_WITHIN * LOADED
    assert outcome.over < 4.0 * LOADED
    lines = outcome.said.split("\n")
    assert sum("has been stopped for 3 s" in line and "kill -CONT" in line for line in lines) == 1
    assert sum("error: rank" in line and "has been stopped for" in line for line in lines) == 1
    assert "  note: mspc run --timeout SECONDS waits longer for a rank that is stopped" in lines
