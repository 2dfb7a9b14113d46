"""Bytes between layouts, all pairs at once, beside the planner that makes the collectives.

The search of equal layers that are one graph beside that of the same layers, looked at one by one.
"""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, compile_traced, trace_call
from mspc.compiler.program_figures import sent_by_ranks
from mspc.passes.lib.choices import Terms
from mspc.passes.lib.redistribution import cost
from mspc.search.layouts import cheapest
from mspc.search.layouts.cheapest import FoundPlan
from mspc.search.model import distances
from mspc.search.model import model as search_model
from mspc.search.model.distances import Hosts, LayoutTable
from mspc.search.plans.alternatives import terms_for
from tests.graphs import FLOAT32, Layout, TensorType

PAIRS = 400


def places_on(mesh: tuple[int, ...], dimensions: int) -> LayoutTable:
    """Every way to give the axes to dimensions, to partial sums, or to replicas."""
    places = LayoutTable(mesh)
    for code in product(range(dimensions + 2), repeat=len(mesh)):
        sharded = [[axis for axis, to in enumerate(code) if to == d] for d in range(dimensions)]
        places.number(Layout.of(mesh, sharded, [axis for axis, to in enumerate(code) if to == dimensions]))
    return places


@pytest.mark.parametrize("mesh", [(2, 2), (4, 2), (3, 2), (2, 2, 2), (8, 8)], ids=str)
@pytest.mark.parametrize("dimensions", [0, 1, 2, 3])
def test_the_planner_sends_as_much(mesh: tuple[int, ...], dimensions: int) -> None:
    places = places_on(mesh, dimensions)
    found_of = places.distances()
    shape = (576,) * dimensions
    nbytes = 4 * 576**dimensions
    targets = [i for i, layout in enumerate(places.layouts) if not layout.partial]
    pairs = [(i, j) for i in range(len(found_of)) for j in targets]
    rng = random.Random(1)
    apart = 0
    for i, j in rng.sample(pairs, min(PAIRS, len(pairs))):
        expected, found = cost(places.layouts[i], places.layouts[j], shape, 4), found_of[i, j] * nbytes
        if found == pytest.approx(expected, rel=1e-9, abs=1e-6):
            continue
        assert places.layouts[i].partial, f"{places.layouts[i]} to {places.layouts[j]}: {found} for {expected}"
        assert found == pytest.approx(expected, rel=0.35)
        apart += 1
    assert apart <= PAIRS / 20, "partial sums that the planner places otherwise are few"


@pytest.mark.parametrize("mesh", [(2, 2, 2), (4, 2, 2)], ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_many_ranks_are_reckoned_with_by_their_axes(
    mesh: tuple[int, ...], dimensions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, by_axes = places_on(mesh, dimensions), places_on(mesh, dimensions)
    exact = places.distances()
    monkeypatch.setattr(distances, "EXACT", 1)
    found = by_axes.distances()
    known = np.isfinite(exact)
    assert (np.isfinite(found) == known).all()
    apart = np.abs(found[known] - exact[known])
    assert apart.mean() < 0.006
    assert apart.max() <= 1 / 16


def test_thousands_of_ranks_take_no_longer() -> None:
    places = places_on((32, 16, 16), 3)
    replicated, sharded = places.number(Layout.replicated(8192, 3)), places.number(Layout.of((8192,), [(0,), (), ()]))
    assert places.distances()[sharded, replicated] == pytest.approx(8191 / 8192)
    assert places.distances()[replicated, sharded] == 0


def test_what_goes_between_hosts_costs_more() -> None:
    places = LayoutTable((2, 2), Hosts(ranks=2, network=10.0))  # axis 0 from host to host
    replicated, both = places.number(Layout.replicated(4, 1)), places.number(Layout.of((2, 2), [(0, 1)]))
    outer, inner = places.number(Layout.of((2, 2), [(0,)])), places.number(Layout.of((2, 2), [(1,)]))
    across, within = places.number(Layout.of((2, 2), [()], [0])), places.number(Layout.of((2, 2), [()], [1]))
    everywhere = places.number(Layout.of((2, 2), [()], [0, 1]))
    found = places.distances()
    assert found[inner, replicated] == 0.5, "every host has all of it"
    assert found[outer, replicated] == 2.5, "a host lacks half, and two cards bring it"
    assert found[both, replicated] == 2.5
    assert found[both, outer] == 0.25
    assert found[within, replicated] == 1.0, "two ranks reduce: each sends all of it once"
    assert found[across, replicated] == 10.0, "two hosts reduce, each rank with its card"
    assert found[everywhere, replicated] == 2 * 0.75 * 5.0, "one ring, through two cards of each host"


def test_what_is_partial_is_not_made_of_what_is_final() -> None:
    places = LayoutTable((2, 2))
    final, partial = places.number(Layout.of((2, 2), [(0,)])), places.number(Layout.of((2, 2), [(0,)], [1]))
    found = places.distances()
    assert found[final, partial] == float("inf")
    assert found[partial, partial] == 0


def test_a_layout_that_comes_later_is_reckoned_with() -> None:
    places = LayoutTable((4,))
    replicated = places.number(Layout.of((4,), [()]))
    assert places.distances().shape == (1, 1)
    sharded = places.number(Layout.of((4,), [(0,)]))
    assert places.distances()[sharded, replicated] == pytest.approx(0.75)
    assert places.number(Layout.of((4,), [(0,)])) == sharded


def test_what_ranks_send_each_other_goes_through_their_own_cards() -> None:
    hosts = Hosts(ranks=8, network=7.0)
    assert hosts.pairs((8, 8), (1,)) == 1.0, "all are of one host"
    assert hosts.pairs((8, 8), (0,)) == 7.0, "each is of another"
    assert hosts.pairs((8, 4, 2), (0, 2)) == pytest.approx(7.0 * 14 / 15), "one of 15 is of the same"


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
    if case in CASES[2:4] and trains and has_ends and terms == Terms():
        pytest.xfail("equal layers count an AllReduce of 1 KiB, or of 16 KiB, less than the same layers one by one")
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
