"""Bytes between layouts, all pairs at once, beside the planner that makes the collectives."""

from __future__ import annotations

import random
from itertools import product

import pytest

from mspc.ir.layout import Layout
from mspc.passes.communication.redistribution_plan import cost
from mspc.passes.search.distances import Places

PAIRS = 400


def places_on(mesh: tuple[int, ...], dimensions: int) -> Places:
    """Every way to give the axes to dimensions, to partial sums, or to replicas."""
    places = Places(mesh)
    for code in product(range(dimensions + 2), repeat=len(mesh)):
        cut = [[axis for axis, to in enumerate(code) if to == d] for d in range(dimensions)]
        places.number(Layout.of(mesh, cut, [axis for axis, to in enumerate(code) if to == dimensions]))
    return places


@pytest.mark.parametrize("mesh", [(2, 2), (4, 2), (3, 2), (2, 2, 2), (8, 8)], ids=str)
@pytest.mark.parametrize("dimensions", [0, 1, 2, 3])
def test_the_planner_sends_as_much(mesh: tuple[int, ...], dimensions: int) -> None:
    places = places_on(mesh, dimensions)
    distances = places.distances()
    shape = (576,) * dimensions
    nbytes = 4 * 576**dimensions
    targets = [i for i, layout in enumerate(places.layouts) if not layout.partial]
    pairs = [(i, j) for i in range(len(distances)) for j in targets]
    rng = random.Random(1)
    apart = 0
    for i, j in rng.sample(pairs, min(PAIRS, len(pairs))):
        expected, found = cost(places.layouts[i], places.layouts[j], shape, 4), distances[i, j] * nbytes
        if found == pytest.approx(expected, rel=1e-9, abs=1e-6):
            continue
        assert places.layouts[i].partial, f"{places.layouts[i]} to {places.layouts[j]}: {found} for {expected}"
        assert found == pytest.approx(expected, rel=0.35)
        apart += 1
    assert apart <= PAIRS / 20, "reductions whose parts the planner places otherwise are few"


def test_what_is_partial_is_not_made_of_what_is_final() -> None:
    places = Places((2, 2))
    final, partial = places.number(Layout.of((2, 2), [(0,)])), places.number(Layout.of((2, 2), [(0,)], [1]))
    distances = places.distances()
    assert distances[final, partial] == float("inf")
    assert distances[partial, partial] == 0


def test_a_layout_that_comes_later_is_reckoned_with() -> None:
    places = Places((4,))
    whole = places.number(Layout.of((4,), [()]))
    assert places.distances().shape == (1, 1)
    cut = places.number(Layout.of((4,), [(0,)]))
    assert places.distances()[cut, whole] == pytest.approx(0.75)
    assert places.number(Layout.of((4,), [(0,)])) == cut
