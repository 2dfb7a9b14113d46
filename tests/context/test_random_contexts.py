"""Random networks with sharded sequences have the numbers of one device; a few of each way of saying so."""

from __future__ import annotations

import pytest

from tests.context.drawn_network import WAYS, DrawnNetwork
from tests.judged_seeds import EQUAL
from tests.sharded_beside_one import beside_one_device
from tests.shares import share_of


@pytest.mark.share(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(share_of(24)))
def test_networks_with_sharded_sequences_are_those_of_one_device(number: int, way: str) -> None:
    outcome = beside_one_device(9000 + number, DrawnNetwork(9000 + number, (way,)))
    assert outcome.kind == EQUAL, outcome.message


def test_gradients_keep_their_ring_where_other_layouts_of_theirs_were_tried() -> None:
    """Propagation tries layouts at an attention's gradients in which ranks hold all keys, and may go back."""
    outcome = beside_one_device(30026, DrawnNetwork(30026))
    assert "SBH" in outcome.text
    assert outcome.kind == EQUAL, outcome.message
