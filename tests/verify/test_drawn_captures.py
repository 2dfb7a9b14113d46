"""Random training steps of PyTorch on ranks are proved equal to one device."""

import pytest

from tests.shares import share_of
from tests.verify.drawn_captures import proofs
from tests.verify.drawn_plans import AXES, drawn

pytest.importorskip("torch")
SEEDS = (15, 20, *range(48))
"""Gradients that tensor parallelism leaves as parts of sums, accumulated gradients in HSDP, and some of every way."""


def test_right_steps_are_equal() -> None:
    taken = SEEDS[: share_of(len(SEEDS), 7)]
    assert {drawn(seed).way for seed in taken} == {*AXES}
    for seed, found in proofs(taken):
        assert found.same, drawn(seed)
