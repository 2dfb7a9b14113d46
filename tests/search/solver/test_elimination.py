"""Elimination beside trying every assignment."""

import random
import time
from itertools import product
from typing import Any

import numpy as np
import pytest

from mspc.search.layouts.within_memory import CostedAssignment, Mixing
from mspc.search.solver import elimination
from mspc.search.solver.elimination import Elimination, Factor, OutOfTime, Sums


def drawn(seed: int) -> tuple[list[int], list[Factor]]:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, 7))]
    tables: dict[tuple[int, ...], np.ndarray] = {}
    factors = [Factor((), np.array(2.5))]
    for _ in range(rng.randint(0, 12)):
        variables = tuple(sorted(rng.sample(range(len(sizes)), rng.randint(1, min(3, len(sizes))))))
        shape = tuple(sizes[v] for v in variables)
        table = tables.setdefault(shape, numbers.integers(0, 50, shape).astype(float))  # alike ones share it
        factors.append(Factor(variables, table))
    return sizes, factors


def least(sizes: list[int], factors: list[Factor]) -> float:
    return min(
        sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in factors)
        for values in product(*map(range, sizes))
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_best_is_found_and_proved(seed: int) -> None:
    sizes, factors = drawn(seed)
    found = Elimination(sizes, factors).solve()
    assert found.cost == found.bound == least(sizes, factors)
    assert found.cost == Elimination(sizes, factors).cost(found.values)
    assert found == Elimination(sizes, factors).solve()


@pytest.mark.parametrize("seed", range(60))
def test_small_tables_give_bounds(seed: int) -> None:
    sizes, factors = drawn(seed)
    largest = max(factor.table.size for factor in factors)
    found = Elimination(sizes, factors, largest).solve()
    assert found.bound <= least(sizes, factors) <= found.cost


@pytest.mark.parametrize("seed", range(30))
def test_every_choice_of_one_variable_has_its_best(seed: int) -> None:
    sizes, factors = drawn(seed)
    for variable in range(len(sizes)):
        for choice, found in enumerate(Elimination(sizes, factors).min_marginals(variable)):
            fixed = Factor((variable,), np.where(np.arange(sizes[variable]) == choice, 0.0, 1e6))
            assert found.values[variable] == choice
            assert found.cost == found.bound == least(sizes, [*factors, fixed])


@pytest.mark.parametrize("remembered", [elimination.CACHED_ELEMENTS, 0])
def test_several_questions_about_one_problem_are_answered_as_each_alone(
    remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elimination, "CACHED_ELEMENTS", remembered)
    for seed in range(30):
        sizes, factors = drawn(seed)
        largest = elimination.LARGEST if seed % 2 else max(factor.table.size for factor in factors)
        together = Elimination(sizes, factors, largest)
        for variable in (*range(len(sizes)), 0):
            assert together.min_marginals(variable) == Elimination(sizes, factors, largest).min_marginals(variable)
        assert together.solve() == Elimination(sizes, factors, largest).solve()


def test_an_elimination_ends_in_time() -> None:
    sizes, factors = drawn(7)
    with pytest.raises(OutOfTime):
        Elimination(sizes, factors, deadline=time.monotonic() - 1).solve()


def test_variables_of_one_choice_may_be_many() -> None:
    sizes = [2, *[1] * 100]
    factors = [Factor((0, v), np.array([[3.0], [1.0]])) for v in range(1, 101)]
    factors.append(Factor(tuple(range(1, 60)), np.full((1,) * 59, 2.0)))
    found = Elimination(sizes, factors).solve()
    assert found.values == (1,) + (0,) * 100
    assert found.cost == found.bound == 102.0


def test_a_variable_that_nothing_costs_takes_its_first_choice() -> None:
    assert Elimination([3, 2], []).solve().values == (0, 0)


@pytest.mark.parametrize("seed", range(10))
def test_assignments_come_to_the_same_one_by_one_and_together(seed: int) -> None:
    """To the last bit, in tables that few and many factors have: ties between plans hang on it."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    sizes = [rng.randint(1, 4) for _ in range(30)]
    factors = [Factor((), np.array(0.1))]
    for count in (1, 3, 8, 9, 40, 200):
        table = numbers.standard_normal((4, 4))
        factors += [Factor(tuple(sorted(rng.sample(range(len(sizes)), 2))), table) for _ in range(count)]
    sums, costs = Sums(factors), Elimination(sizes, factors)
    assignments = [tuple(rng.randrange(size) for size in sizes) for _ in range(50)]
    each = sums.totals(assignments)
    assert each == [sums.total(values) for values in assignments]
    assert each == pytest.approx([costs.cost(values) for values in assignments])
    assert sums.totals(assignments[:1]) == each[:1]


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
