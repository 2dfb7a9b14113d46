"""Tables that are sharded along the looked-up dimension: what another rank owns is NaN here and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.types import FLOAT64, INT32, TensorType
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import EmbeddingLookup, Gather, GatherGrad
from mspc.ops.tensor.scatter import GatherNd
from mspc.ops.tensor.selection import GatherD, GatherDGrad
from tests.ops.simulate import check_sharded, results_of

RANDOM = np.random.default_rng(7)
TABLE = RANDOM.standard_normal((6, 4))
TABLE[0], TABLE[3] = np.nan, np.inf
ROWS = RANDOM.integers(0, 6, (6, 4)).astype(np.int32)
BATCHES = np.stack([TABLE, TABLE[::-1]])
CASES: dict[str, tuple[Op, Any, Any]] = {
    "gather": (Gather(), TABLE, ROWS),
    "gather in a batch": (Gather(1, 1), BATCHES, ROWS[:2]),
    "gather in a batch backwards": (GatherGrad(6, 1, batch_dims=1), BATCHES, ROWS.T[:2]),
    "embedding": (EmbeddingLookup(), TABLE, ROWS),
    "gather along": (GatherD(0), TABLE, ROWS),
    "gather along backwards": (GatherDGrad(0, 6), ROWS, TABLE),
    "gather nd": (GatherNd(), TABLE, ROWS[:, :1]),
}


@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize("name", CASES)
def test_ranks_equal_the_whole(name: str, ranks: int) -> None:
    op, *inputs = CASES[name]
    types = [TensorType(INT32 if x.dtype == np.int32 else FLOAT64, x.shape) for x in inputs]
    with np.errstate(invalid="ignore"):
        assert check_sharded(op, inputs, types, ranks) >= 2


def test_places_outside_of_the_table_are_zeros() -> None:
    found = results_of(EmbeddingLookup(2), [TABLE, np.array([0, 2, 3, 8], np.int32)])[0]
    np.testing.assert_array_equal(found, np.stack([np.zeros(4), TABLE[0], TABLE[1], np.zeros(4)]))
