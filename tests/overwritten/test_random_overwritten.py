"""Values of parameters that are taken in many ways stay as they are: on one device, on ranks, in the GPU's programs."""

from __future__ import annotations

import pytest

from tests.overwritten.random_overwritten import wrong
from tests.shares import share_of


@pytest.mark.parametrize("seed", range(102, 102 + share_of(72)))
def test_values_stay_when_parameters_are_overwritten(seed: int) -> None:
    assert not wrong(seed)
