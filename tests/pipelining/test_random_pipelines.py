"""Random networks in stages have the numbers of one device; a few of each way of training."""

from __future__ import annotations

import pytest

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
