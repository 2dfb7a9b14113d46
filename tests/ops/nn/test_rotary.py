"""Rotary embeddings of positions: two operators, one result."""

from __future__ import annotations

import numpy as np

from mspc import Tensor, ops


def test_a_rotated_row_is_that_of_the_other_operator() -> None:
    random = np.random.default_rng(7)
    x, cos, sin = (Tensor(random.normal(size=(2, 5, n, 4)).astype(np.float32)) for n in (3, 1, 1))
    found = ops.RotaryPositionEmbedding()(x, cos, sin).asnumpy()
    other, _ = ops.ApplyRotaryPosEmb()(x, x, cos, sin, Tensor(np.zeros(2, np.int32)))
    assert (found == other.asnumpy()).all()
