"""Values of parameters that are taken in many ways stay as they are: on one device, on ranks, in the GPU's programs."""

from __future__ import annotations

import pytest

from tests.overwritten.random_overwritten import wrong


@pytest.mark.parametrize("seed", range(102, 114))
def test_values_stay_when_parameters_are_overwritten(seed: int) -> None:
    assert not wrong(seed)
