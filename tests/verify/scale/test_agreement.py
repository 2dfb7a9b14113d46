"""`mspc verify --scale` says of small networks what `mspc verify` says."""

from __future__ import annotations

import pytest

from tests.verify.scale.agreement import ALARM, MISSED, OWN, judged


@pytest.mark.parametrize("seed", [0, 1, 2, 30086])
def test_small_and_full_sizes_agree(seed: int) -> None:
    """30086: ranks have one head each, in a folder."""
    assert not [each for each in judged(seed) if each[0].endswith((MISSED, ALARM, OWN))]
