"""The search of equal layers that are one graph beside that of the same layers, looked at one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, compile_traced, trace_call
from mspc.compiler.program_figures import sent_by_ranks
from mspc.ir.types import FLOAT32, TensorType
from mspc.passes.lib.plan_header import Terms
from mspc.search.layouts import cheapest
from mspc.search.layouts.cheapest import FoundPlan
from mspc.search.model import model as search_model
from mspc.search.plans.alternatives import terms_for


class Layer(nn.Cell):
    """Two products behind a norm, with a residual."""

    @mspc.lazy_inline
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((width,))
        self.up = Parameter(Tensor(np.ones((width, hidden), np.float32)))
        self.down = Parameter(Tensor(np.ones((hidden, width), np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return x + ops.matmul(ops.gelu(ops.matmul(self.norm(x), self.up)), self.down)


class Network(nn.Cell):
    """Layers alone, or between two products."""

    def __init__(self, layers: int, width: int, hidden: int, has_ends: bool) -> None:
        super().__init__()
        self.has_ends = has_ends
        self.first = Parameter(Tensor(np.ones((width, width), np.float32)))
        self.last = Parameter(Tensor(np.ones((width, width), np.float32)))
        self.layers = nn.CellList([Layer(width, hidden) for _ in range(layers)])

    def construct(self, x: Tensor) -> Tensor:
        if self.has_ends:
            x = ops.matmul(x, self.first)
        for layer in self.layers:
            x = layer(x)
        if self.has_ends:
            x = ops.matmul(x, self.last)
        return x.mean()


CASES = [
    # layers, width, hidden, rows, ranks
    (2, 64, 256, 32, 4),
    (3, 64, 256, 32, 4),
    (4, 64, 256, 32, 8),
    (4, 512, 2048, 64, 8),
    (4, 512, 2048, 4096, 8),
]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[FoundPlan]:
    """The results of the searches of a test."""
    plans: list[FoundPlan] = []
    place = cheapest.place_forward

    def noted(search: cheapest.Search) -> FoundPlan:
        plans.append(place(search))
        return plans[-1]

    monkeypatch.setattr(cheapest, "place_forward", noted)
    return plans


def search(case: tuple[int, ...], terms: Terms, trains: bool, has_ends: bool, unrolled: bool) -> Compiled:
    layers, width, hidden, rows, ranks = case
    network = Network(layers, width, hidden, has_ends)
    target = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params())) if trains else network
    config = Config(ranks, mode="auto_parallel", dataset_strategy="full_batch", search_mode="dynamic_programming")
    config = replace(config, search_terms=terms)
    call = describe_call([TensorType(FLOAT32, (rows, width))], [])
    return compile_traced(trace_call(target, call, config, unrolled=unrolled))


@pytest.mark.share(3)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("trains", [True, False], ids=["trained", "called"])
@pytest.mark.parametrize("has_ends", [True, False], ids=["between", "alone"])
@pytest.mark.parametrize("terms", [terms_for(H200), Terms()], ids=["time", "bytes"])
def test_the_least_is_that_of_layers_one_by_one(
    case: tuple[int, ...], trains: bool, has_ends: bool, terms: Terms, found: list[FoundPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(search_model, "SMALL", 0)  # else the few operators of one layer are looked at more closely
    for unrolled in (True, False):
        search(case, terms, trains, has_ends, unrolled)
    one_by_one, folded = (plan.assignment for plan in found)
    trifle = 1e-5  # bytes that what enters the loop counts, as work
    assert folded.cost == pytest.approx(one_by_one.cost, rel=1e-9, abs=trifle)
    assert folded.bound == pytest.approx(one_by_one.bound, rel=1e-9, abs=trifle)
    assert len(found[1].model.nodes) < len(found[0].model.nodes)


@pytest.mark.parametrize("terms", [terms_for(H200), Terms()], ids=["time", "bytes"])
def test_many_layers_are_as_few(terms: Terms, found: list[FoundPlan]) -> None:
    for layers in (2, 32):
        search((layers, 64, 256, 32, 4), terms, True, True, False)
    few, many = found
    assert len(few.model.variables) == len(many.model.variables)
    assert [f.variables for f in few.model.factors] == [f.variables for f in many.model.factors]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("trains", [True, False], ids=["trained", "called"])
def test_the_header_says_what_is_sent_in_all_turns(case: tuple[int, ...], trains: bool) -> None:
    compiled = search(case, Terms(), trains, True, False)
    attrs = compiled.graph.attrs
    assert attrs["search_cost"] == pytest.approx(sent_by_ranks(compiled).mean, abs=1)
    assert attrs.get("search_bound", 0) <= attrs["search_cost"]
