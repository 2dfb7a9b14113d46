"""Random networks with loops, branches, equal layers and random masks: ranks in data parallel mode have the parameters,
optimizer states and rows of one device on the global batch."""

from __future__ import annotations

import pytest

from tests.data_parallel.drawn_batches import TRAINING, check
from tests.judged_seeds import EQUAL
from tests.shares import share_of


@pytest.mark.parametrize("training", TRAINING)
@pytest.mark.parametrize("number", range(share_of(12)))
def test_ranks_equal_one_device_on_the_global_batch(number: int, training: str) -> None:
    outcome = check(1000 + number, training)
    assert outcome.kind == EQUAL, outcome.message


@pytest.mark.parametrize("seed", [6, 153, 2082])
def test_one_row_per_rank(seed: int) -> None:
    """Rows in a dimension of size 1: of (2, 4) reshaped to (1, 8), of a mask (1, 1), and of a micro-batch."""
    outcome = check(seed)
    assert outcome.kind == EQUAL, outcome.message
