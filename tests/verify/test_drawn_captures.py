"""Random training steps of PyTorch on ranks are proved equal to one device."""

from pathlib import Path

import pytest

from tests.shares import share_of
from tests.verify.drawn_captures import captured, differences
from tests.verify.drawn_plans import drawn

pytest.importorskip("torch")
FIRST = (15, 20, 4, 5, 0, 1)
"""One of every way: gradients that tensor parallelism leaves as parts of sums, and accumulated gradients in HSDP."""
SEEDS = (*FIRST, *(seed for seed in range(48) if seed not in FIRST))


def test_right_steps_are_equal(tmp_path: Path) -> None:
    taken = SEEDS[: share_of(len(SEEDS))]
    captured(taken, tmp_path)
    assert {drawn(seed).way: found for seed in taken if (found := differences(tmp_path, seed))} == {}
