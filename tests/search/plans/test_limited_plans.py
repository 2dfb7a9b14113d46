"""`mspc search --memory`: where a compiled plan fits, one is found, and what a message says is needed is needed."""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc import Parameter, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.common.initializer import initializer
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.context import freeze
from mspc.search.layouts.within_memory import Limited
from mspc.search.plans.alternatives import WAYS, PlannedNetwork, PlanRequest
from mspc.search.plans.figures import SearchedNetwork
from mspc.search.plans.limited import CompiledFront
from mspc.search.plans.row import SEARCH
from mspc.search.plans.table import plans_for
from tests.memory_limits import Found, case_of, hold, known_plans, searched
from tests.searched_networks import launched
from tests.shares import is_taken, share_of


def test_no_limit_is_refused_that_a_plan_keeps() -> None:
    found, generator = Found(), random.Random(26)
    lines: list[str] = []
    count = share_of(14)
    for i in range(count):
        case = case_of(generator.getrandbits(32))
        lines += hold(case, known_plans(case, 30), found, shares=(0.3 * (i % 2),))
    assert found.limits == count
    assert not found.refused, lines


SEEMING_DEAR = [4012624555, 3781463763, 2087043557]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [seed for place, seed in enumerate(SEEMING_DEAR) if is_taken(place, 3)])
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


EVERY_LIMIT = [2087043557, 2195908194, 1210484339, 3564191072]


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [seed for place, seed in enumerate(EVERY_LIMIT) if is_taken(place, 2)])
def test_the_fastest_plan_of_every_limit_is_near_the_best_of_all_plans(seed: int) -> None:
    """The limits are the memory of all plans, each of which is compiled."""
    case = case_of(seed)
    network = PlannedNetwork.read(case.captured, case.config, case.asked.free)
    front = SearchedNetwork(network, case.asked, WAYS[0]).front
    assert front is not None
    known = known_plans(case, 81)
    for limit in {plan.memory for plan in known}:
        best = min(plan.step for plan in known if plan.memory <= limit)
        values = front.within(limit)
        assert front.known[values].bytes <= limit, f"{limit} bytes are refused"
        assert front.known[values].step <= 1.03 * best, f"within {limit} bytes"


class _TwoProducts(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = Parameter(initializer("normal", [128, 2048]))
        self.second = Parameter(initializer("normal", [512, 2048]))
        self.product, self.turned = ops.MatMul(), ops.MatMul(transpose_a=True)

    def construct(self, x: Any) -> Any:
        return self.turned(self.product(x, self.first), self.second)


@pytest.mark.thorough
def test_no_plan_that_stores_a_parameter_otherwise_is_much_faster_within_a_limit() -> None:
    """Where gradients are sliced before they are needed the model's memory is far from the program's."""
    net = _TwoProducts()
    target = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    captured = CapturedCall(target, (TensorType(FLOAT32, (512, 128)),), freeze(target), Path("n.py"), global_types=True)
    asked = PlanRequest(8, H200, free=True)
    front = SearchedNetwork(PlannedNetwork.read(captured, asked.config(captured), True), asked, WAYS[0]).front
    assert front is not None
    fastest, model = front.fastest(), front.candidates
    assert fastest is not None
    near = [each for each in model.neighbours(fastest) if model.cost(each) < 1.05 * model.cost(fastest)]
    costs = [front.known.get(each) or front.measure(each) for each in near]
    for limit in (36_700_180, 33_554_432):
        found = front.fastest(limit)
        assert found is not None
        assert front.known[found].step <= 1.03 * min(cost.step for cost in costs if cost.bytes <= limit)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [2087043557])
def test_more_memory_never_gives_a_slower_plan_and_every_plan_states_its_gap(seed: int) -> None:
    case = case_of(seed)
    free = searched(case, 0)
    assert not isinstance(free, str)
    least = min(plan.memory for plan in known_plans(case, 30))
    limits = [least, (least + free.memory) // 2, free.memory]
    plans = [plan for limit in limits if not isinstance(plan := searched(case, limit), str)]
    steps = [plan.step for plan in plans]
    assert len(steps) == len(limits)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(free.step)
    assert all(plan.search_gap is not None and 0 <= plan.search_gap < 1 for plan in (free, *plans))


@pytest.mark.thorough
def test_plans_that_are_compiled_for_limits_do_not_depend_on_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the plan of a smaller limit might be faster than the plan of a larger one."""
    case = case_of(2087043557)
    monkeypatch.setattr(Limited, "_at_peak", lambda *_: pytest.fail("the solver searches for a plan within the limit"))
    monkeypatch.setattr(SearchedNetwork, "_smaller_limits", lambda _: [])
    known: list[CompiledFront] = []
    for limit in (1 << 24, 1 << 25):  # below the smallest plan, and below the fastest
        asked = replace(case.asked, memory=limit)
        network = SearchedNetwork(PlannedNetwork.read(case.captured, case.config, case.asked.free), asked, WAYS[0])
        assert network.front is not None
        known.append(network.front)
        if limit == 1 << 24:
            with pytest.raises(MspcError, match="the smallest takes") as error:
                network.quickest()
            assert error.value.message.endswith(f" {shown_bytes(int(network.front.front[0][0]))}")
        else:
            assert network.quickest().plan.memory <= limit
    assert known[0].known == known[1].known


@pytest.mark.parametrize("seed", [1, 8])
def test_what_is_needed_at_least_is_proved(seed: int) -> None:
    case = case_of(seed)
    least = min(plan.memory for plan in known_plans(case, 20))
    with pytest.raises(MspcError, match="no plan fits 1,000 bytes of memory on a rank: at least ") as error:
        plans_for(case.captured, replace(case.asked, memory=1000), ways=WAYS[:1])
    needed = int(re.findall(r"([\d,]+) bytes", error.value.message)[-1].replace(",", ""))
    assert 1000 < needed <= least
