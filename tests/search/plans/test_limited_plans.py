"""`mspc search --memory`: where a compiled plan fits, one is found, and what a message says is needed is needed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mspc.analysis.cost.known_machines import H200
from mspc.ir.diagnostics import MspcError
from mspc.ops.op import load_operators
from mspc.search.plans.alternatives import WAYS, PlannedNetwork, PlanRequest
from mspc.search.plans.related_plans import SearchedNetwork
from mspc.search.plans.row import SEARCH
from mspc.search.plans.table import plans_for
from tests.memory_limits import Found, case_of, hold, known_plans, searched
from tests.searched_networks import launched
from tests.shares import share_of

load_operators()


def test_no_limit_is_refused_that_a_plan_keeps() -> None:
    found, generator = Found(), random.Random(26)
    lines: list[str] = []
    count = share_of(14)
    for i in range(count):
        case = case_of(generator.getrandbits(32))
        lines += hold(case, known_plans(case, 30), found, shares=(0.3 * (i % 2),))
    assert found.limits == count
    assert not found.refused, lines


@pytest.mark.parametrize("seed", [3781463763, 4012624555, 2087043557])
def test_within_a_limit_plans_that_seem_to_cost_more_are_compiled(seed: int) -> None:
    case, found = case_of(seed), Found()
    lines = [*hold(case, known_plans(case, 60), found, shares=(0.0, 0.1, 0.5))]
    assert found.limits > 1
    assert not found.slower, lines


def test_without_a_limit_plans_that_seem_to_cost_more_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is quicker than the one that seems to be the cheapest."""

    def step() -> float:
        net, captured = launched(300291)
        plans = plans_for(captured, PlanRequest(net.ranks, H200, free=True)).plans
        return next(plan.step for plan in plans if plan.name == SEARCH)

    found = step()
    monkeypatch.setattr(SearchedNetwork, "front", None)
    assert found < 0.99 * step()


@pytest.mark.parametrize("seed", [2195908194, 2087043557, 1210484339, 3564191072])
def test_the_fastest_plan_of_every_limit_is_near_the_best_of_all_plans(seed: int) -> None:
    """The limits are the memory of all plans, each of which is compiled."""
    case = case_of(seed)
    network = PlannedNetwork.read(case.captured, case.config, case.asked.free)
    front = SearchedNetwork(network, case.asked, WAYS[0]).front
    assert front is not None
    known = known_plans(case, 81)
    for limit in {plan.memory for plan in known}:
        best = min(plan.step for plan in known if plan.memory <= limit)
        if front.fastest(limit) is None:
            front.explore_below(limit)
        values = front.fastest(limit)
        assert values is not None, f"{limit} bytes are refused"
        assert front.known[values].bytes <= limit
        assert front.known[values].step <= 1.03 * best, f"within {limit} bytes"


@pytest.mark.parametrize("seed", [2087043557])
def test_more_memory_never_gives_a_slower_plan(seed: int) -> None:
    case = case_of(seed)
    free = searched(case, 0)
    assert not isinstance(free, str)
    least = min(plan.memory for plan in known_plans(case, 30))
    limits = [least, (least + free.memory) // 2, free.memory]
    plans = [searched(case, limit) for limit in limits]
    steps = [plan.step for plan in plans if not isinstance(plan, str)]
    assert len(steps) == len(limits)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(free.step)


@pytest.mark.parametrize("seed", [1, 8])
def test_what_is_needed_at_least_is_proved(seed: int) -> None:
    case = case_of(seed)
    least = min(plan.memory for plan in known_plans(case, 20))
    with pytest.raises(MspcError, match="no plan fits 1000 bytes of memory on a rank: at least ") as error:
        plans_for(case.captured, replace(case.asked, memory=1000), ways=WAYS[:1])
    needed = int(error.value.message.split("at least ")[1].split()[0])
    assert 1000 < needed <= least
