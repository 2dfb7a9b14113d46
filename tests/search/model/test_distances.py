"""Bytes between layouts, all pairs at once, beside the planner that makes the collectives."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from mspc.ir.layout import Layout
from mspc.passes.lib.redistribution import cost
from mspc.search.model import distances
from mspc.search.model.distances import Hosts, LayoutTable

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
