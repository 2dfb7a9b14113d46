"""Mixtures of two assignments beside all that there are."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mspc.search.layouts.within_memory import CostedAssignment, Mixing
from mspc.search.solver.elimination import Factor, Sums

PAIRS = 4


def problem(seed: int) -> tuple[Any, Any]:
    """Pairs of variables that have to do with each other alone: (costs, bytes)."""
    random = np.random.default_rng(seed)
    tables = [[random.integers(0, 50, (2, 2)).astype(float) for _ in range(PAIRS)] for _ in range(2)]
    alone = random.integers(0, 50, 2).astype(float)
    return tuple(
        [*(Factor((2 * i, 2 * i + 1), table) for i, table in enumerate(own)), Factor((0,), alone),
         Factor((), np.array(3.0))]
        for own in tables
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_mixtures_are_the_best_there_are(seed: int) -> None:
    costs, held = (Sums(factors) for factors in problem(seed))

    def plan(values: tuple[int, ...]) -> CostedAssignment:
        return CostedAssignment(values, costs.total(values), (held.total(values),))

    every = [plan(values) for values in product(range(2), repeat=2 * PAIRS)]
    over, within = max(every, key=lambda p: (p.rows, -p.cost)), min(every, key=lambda p: (p.rows, p.cost))
    mixing = Mixing(costs, [held], {})
    parts = mixing.parts(over.values, within.values)
    assert all({v ^ 1 for v in part.variables} & set(part.variables) or len(part.variables) == 1 for part in parts)
    assert over.cost + sum(part.cost for part in parts) == within.cost
    for share in (0.25, 0.5, 0.75, 1.0):
        limit = within.rows[0] + share * (over.rows[0] - within.rows[0])
        found = mixing.between(over, within, 0, (limit,))
        assert found is not None
        assert found == plan(found.values)
        assert found.rows[0] <= limit
        mixtures = [
            plan(tuple((within if taken[next(i for i, p in enumerate(parts) if v in p.variables)] else over).values[v]
                       if any(v in p.variables for p in parts) else over.values[v] for v in range(2 * PAIRS)))
            for taken in product((False, True), repeat=len(parts))
        ]  # fmt: skip
        best = min(each.cost for each in mixtures if each.rows[0] <= limit)
        assert found.cost <= best * 1.02 + 1e-9


def test_parts_that_do_not_make_a_limit_are_no_mixture() -> None:
    costs, held = (Sums(factors) for factors in problem(0))
    values = (0,) * (2 * PAIRS)
    plan = CostedAssignment(values, costs.total(values), (held.total(values),))
    assert Mixing(costs, [held], {}).between(plan, plan, 0, (plan.rows[0] - 1,)) is None
