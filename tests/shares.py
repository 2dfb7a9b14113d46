"""How many of the cases that a test draws are taken: a share of them every day, all under `pytest --thorough`.

The share is always the same one: what fails once fails again.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

THOROUGH = "MSPC_TEST_THOROUGHLY"
"""The variable by which processes that tests start know of the option, too."""
PARTS = 12


def share_of(count: int, parts: int = PARTS) -> int:
    """One of so many parts of `count`, rounded up; under `--thorough` all of it."""
    return count if os.environ.get(THOROUGH) else -(-count // parts)


def is_taken(place: int, parts: int = PARTS) -> bool:
    """Whether the case at a place is one of a share that is spread over all; under `--thorough` every one is."""
    return place % parts == 0 or bool(os.environ.get(THOROUGH))


def is_daily(item: pytest.Item) -> bool:
    """Return whether a normal run takes a test: one in so many cases of a test marked `share(parts)`, and no test
    marked `thorough`. Under `--thorough` every test is taken."""
    if os.environ.get(THOROUGH):
        return True
    if item.get_closest_marker("thorough"):
        return False
    case, share = getattr(item, "callspec", None), item.get_closest_marker("share")
    if case is None or share is None:
        return True
    # The index of every argument is the place among all combinations, of which the last list changes first.
    left, total = max(case.indices.values()), 0
    for mark in reversed([*item.iter_markers("parametrize")]):
        left, index = divmod(left, len(mark.args[1]))
        total += index
    return is_taken(total, *share.args)


def crossed(*options: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one from each of these lists, such that any two from different lists meet in one; under
    `--thorough` all combinations, in the same order."""
    every = list(product(*options))
    if os.environ.get(THOROUGH):
        return every
    missing = {pair for case in every for pair in _pairs(case)}
    found: list[tuple[Any, ...]] = []
    while missing:
        found.append(max(every, key=lambda case: len(missing & _pairs(case))))  # the first of the best
        missing -= _pairs(found[-1])
    return sorted(found, key=every.index)


def _pairs(case: Sequence[Any]) -> set[Any]:
    """Any two of a combination, with their places."""
    return set(combinations(enumerate(case), 2))
