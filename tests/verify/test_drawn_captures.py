"""Random training steps of PyTorch on ranks are proved equal to one device."""

from pathlib import Path

import pytest

from tests.shares import share_of
from tests.verify.drawn_captures import captured, differences
from tests.verify.drawn_plans import AXES, drawn

pytest.importorskip("torch")
SEEDS = (15, 20, *range(48))
"""Gradients that tensor parallelism leaves as parts of sums, accumulated gradients in HSDP, and some of every way."""


def test_right_steps_are_equal(tmp_path: Path) -> None:
    taken = SEEDS[: share_of(len(SEEDS), 7)]
    assert {drawn(seed).way for seed in taken} == {*AXES}
    captured(taken, tmp_path)
    assert {seed: found for seed in taken if (found := differences(tmp_path, seed))} == {}
