"""Schedules that give a stage one chunk add gradients up in one order, and so have equal numbers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.pipelining.drawn_network import WAYS, DrawnNetwork
from tests.sharded_beside_one import run
from tests.shares import share_of

TRAINED = tuple(way for way in WAYS if way != "inference")


@pytest.mark.parametrize("seed", range(8000, 8000 + share_of(12)))
def test_schedules_have_the_same_bits(seed: int, tmp_path: Path) -> None:
    networks = [
        DrawnNetwork(seed, only=TRAINED, schedule=name)
        for name in ("1f1b", "gpipe", "zero_bubble_h1", "zero_bubble_2p")
    ]
    first, *others = [run(network.sharded(str(tmp_path)), network.ranks, tmp_path) for network in networks]
    for network, other in zip(networks[1:], others, strict=True):
        for rank, (own, known) in enumerate(zip(other, first, strict=True)):
            assert own.keys() == known.keys()
            for name in own:
                np.testing.assert_array_equal(own[name], known[name], f"{name} of rank {rank}: {network.about}")
