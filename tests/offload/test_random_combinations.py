"""Random networks with states and activations on the host have the numbers of one device; a few of each kind."""

from __future__ import annotations

import pytest

from tests.judged_seeds import EQUAL
from tests.offload.drawn_combinations import KINDS, Combination
from tests.sharded_beside_one import beside_one_device
from tests.shares import share_of


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(share_of(4)))
def test_combinations_are_those_of_one_device(number: int, kind: str) -> None:
    outcome = beside_one_device(7000 + number, Combination(7000 + number, kind))
    assert outcome.kind == EQUAL, outcome.message
