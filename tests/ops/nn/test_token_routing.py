"""Tokens on their way to experts with little room: against a loop over the choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import MspcError, Tensor, ops

RANDOM = np.random.default_rng(2)
EXPERTS = RANDOM.integers(0, 4, (2, 7, 3)).astype(np.int32)


def by_loop(drop_type: int, capacity: int = 2) -> tuple[Any, Any]:
    batch, tokens, k = EXPERTS.shape
    dispatched, combined = np.zeros((batch, 4, capacity), int), np.zeros(EXPERTS.shape, int)
    turns = [(i, j) for i in range(tokens) for j in range(k)]
    if drop_type:
        turns.sort(key=lambda turn: turn[::-1])
    for row in range(batch):
        taken = [0] * 4
        for i, j in turns:
            expert = EXPERTS[row, i, j]
            combined[row, i, j] = expert * (capacity + 1)
            if taken[expert] < capacity:
                dispatched[row, expert, taken[expert]] = i + 1
                taken[expert] += 1
                combined[row, i, j] += taken[expert]
    return dispatched, combined


@pytest.mark.parametrize("drop_type", [0, 1])
def test_experts_take_tokens_as_long_as_there_is_room(drop_type: int) -> None:
    found = ops.TopKRouter()(Tensor(EXPERTS), 2, 4, drop_type)
    for got, expected in zip(found, by_loop(drop_type), strict=True):
        assert got.asnumpy().dtype == np.int32
        assert (got.asnumpy() == expected).all()


@pytest.mark.parametrize(("given", "message"), [
    ((0, 4, 0), "TopKRouter: capacity is 0, not a positive number"),
    ((2, 4, 2), "TopKRouter: drop_type must be 0 or 1, not 2"),
    ((2.5, 4, 0), "TopKRouter: capacity must be an integer known at compile time, not 2.5"),
])  # fmt: skip
def test_what_makes_no_table_is_refused(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        ops.TopKRouter()(Tensor(EXPERTS), *given)
