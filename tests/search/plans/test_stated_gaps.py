"""No plan of random networks is quicker, or sends less, than what a search states allows, and a limit of memory brings
no quicker plan."""

import pytest

from mspc.analysis.cost.machine import Rate
from tests.searched_networks import Found, check
from tests.shares import share_of

NETWORKS, DRAWN, PARTS = share_of(288), 1, 3
FIRST, SEARCHED, MANY = 300, share_of(8), 12
"""From a seed on, of so many networks times are searched for, too, and so many plans are sampled of each."""


@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part-{part + 1}-of-{PARTS}")
def test_no_plan_is_better_than_stated(part: int) -> None:
    found = Found()
    for seed in range(part, NETWORKS, PARTS):
        check(seed, DRAWN, found, steps=False)
    assert not found.false, found.lines
    assert found.networks == NETWORKS / PARTS
    assert found.plans > found.networks * DRAWN * 0.9


@pytest.mark.thorough
def test_searched_steps_are_the_quickest_that_were_seen() -> None:
    found = Found()
    for seed in range(FIRST, FIRST + SEARCHED):
        check(seed, MANY, found)
    assert not found.false, found.lines
    assert not found.slower, found.lines


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [56])
def test_gradients_that_are_cheaper_than_reckoned_with_are_found(seed: int) -> None:
    found = Found()
    check(seed, MANY, found, steps=False)
    assert not found.dearer, found.lines


def test_the_highest_rate_of_an_amount_or_more() -> None:
    rate = Rate(((1.0, 1.0), (4.0, 8.0), (16.0, 2.0)))
    assert rate.best(1.0, 16.0) == rate.best(4.0, 4.0) == 8.0
    assert rate.best(8.0, 16.0) == rate.at(8.0)
    assert rate.best(0.5, 1.0) == 1.0
