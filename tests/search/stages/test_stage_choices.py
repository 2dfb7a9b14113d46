"""The search for stages among all borders, schedules and micro-batches: nothing better is there, and bounds hold."""

from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest

from mspc.search.stages.boundaries import BoundarySearch, all_ways, choose
from mspc.search.stages.problem import SeparateCosts, UnitCosts, Walk, Way, equal_parts, ways_of
from tests.stage_choices import difference, drawn, seconds


def equal(count: int, last: float = 1.0) -> UnitCosts:
    """Units that take 1 for each of the forward operators and both gradients; the last one `last` times that."""
    ones = np.ones(count)
    each = ones.copy()
    each[-1] = last
    nothing = np.zeros(count)
    return UnitCosts(
        each, 2 * each, each, each, nothing, ones, ones, nothing, nothing[1:], ones, nothing, nothing, nothing, nothing,
        SeparateCosts(each, ones, ones, nothing, ones, nothing, nothing),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_nothing_better_is_there(seed: int) -> None:
    assert difference(seed) == ""


@pytest.mark.parametrize("seed", range(40, 44))
def test_bounds_are_below_every_choice(seed: int) -> None:
    costs, stages, counts, memory = drawn(Random(seed))
    for problem in all_ways(costs, stages, counts):
        search = BoundarySearch(costs, problem.way, memory)
        for boundaries in combinations(range(1, costs.count), problem.way.parts - 1):
            taken = seconds(costs, problem.way, boundaries, memory)
            edges = (0, *boundaries, costs.count)
            least = [search.bounds.least[chunk, a, b] for chunk, (a, b) in enumerate(pairwise(edges))]
            assert search.seconds(boundaries) == pytest.approx(taken)
            assert taken == np.inf or max(*least, search.bounds.of_all) <= taken


def test_a_heavy_last_unit_gets_a_stage_with_fewer() -> None:
    found = BoundarySearch(equal(12, last=3), Way(4, "1f1b", 8)).solve()
    sizes = np.diff((0, *found.boundaries, 12)).tolist()
    assert sizes[-1] < sizes[0]
    assert found.proven == pytest.approx(found.seconds)
    assert found.seconds < BoundarySearch(equal(12, last=3), found.way).seconds(equal_parts(12, 4))


def test_memory_leaves_out_schedules_that_keep_all() -> None:
    costs = equal(4)
    problems = [each for each in all_ways(costs, [4], [8]) if each.way.schedule in ("gpipe", "1f1b")]
    saved = {name: Walk(Way(4, name, 8)).memory(costs, np.array([[1, 2, 3]]))[0] for name in ("gpipe", "1f1b")}
    assert saved == {"gpipe": 9, "1f1b": 5}
    found = choose(problems, memory=5)
    assert found.best is not None
    assert found.best.way.schedule == "1f1b"
    assert choose(problems, memory=4).best is None


def test_a_search_that_ends_early_says_what_is_left() -> None:
    costs, way = equal(40, last=2.5), Way(8, "interleaved", 16, 3)
    found = BoundarySearch(costs, way).solve(most=1)
    assert 0 < found.proven < found.seconds


def test_ways_have_work_for_every_stage() -> None:
    assert ways_of(4, 2, 9) == []
    assert ways_of(4, 8, 3) == []
    names = {way.name for way in ways_of(2, 4, 4)}
    assert {"1f1b", "gpipe", "zero_bubble_h1", "interleaved, 2 chunks", "zero_bubble_v", "dual_pipe_v"} <= names
    assert "interleaved, 3 chunks" not in names
