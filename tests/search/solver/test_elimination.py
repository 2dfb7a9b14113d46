"""Elimination beside trying every assignment."""

from __future__ import annotations

import random
import time
from itertools import product

import numpy as np
import pytest

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
