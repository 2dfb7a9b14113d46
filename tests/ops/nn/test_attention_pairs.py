"""Pairs of slices of a sequence are worked on once each, evenly where bytes allow it, and send no more than a ring."""

from __future__ import annotations

from itertools import product

import pytest

from mspc.ops.nn.attention_base import Pairs, Window, pairs_of
from tests.grouped import each

CAUSAL, EVERY = (None, 0), (None, None)


def loads(pairs: Pairs) -> list[float]:
    """How many pairs each rank works on, a half one being that of its own two slices."""
    found = [0.5] * pairs.ranks
    for i, _ in pairs.by_queries:
        found[i] += 1
    for _, j in pairs.by_keys:
        found[j] += 1
    for i, j in pairs.halved:
        found[i] += 0.5
        found[j] += 0.5
    return found


@pytest.mark.parametrize("window", [CAUSAL, EVERY, (-9, 0), (-20, 7), (3, 30)])
def test_every_pair_that_sees_anything_has_one_place(window: Window) -> None:
    each(check_pairs, product(range(2, 17), (0.5, 1.0, 2.0, 4.0, 8.0), [window]))


def check_pairs(ranks: int, ratio: float, window: Window) -> None:
    queries, keys = 6, 4
    pairs = pairs_of(ranks, (queries, keys), window, ratio, True)
    low, high = window
    wanted = {
        (i, j)
        for i in range(ranks)
        for j in range(ranks)
        if i != j
        and any(
            (low is None or k - q >= low) and (high is None or k - q <= high)
            for q in range(i * queries, (i + 1) * queries)
            for k in range(j * keys, (j + 1) * keys)
        )
    }
    assert pairs.all == wanted
    assert len(wanted) == len(pairs.by_queries) + len(pairs.by_keys) + len(pairs.halved)
    assert pairs.sent(1, ratio) <= ranks - 1 + 1e-9


@pytest.mark.parametrize("ranks", range(2, 17))
def test_causal_work_is_shared_out_evenly(ranks: int) -> None:
    """With as many heads of keys as of queries; half as much is sent as by a ring and half a slice of queries."""
    pairs = pairs_of(ranks, (8, 8), CAUSAL, 1.0, True)
    assert max(loads(pairs)) == min(loads(pairs)) == ranks / 2
    assert pairs.sent(1, 1) <= (ranks - 1) / 2 + 0.25
    assert len(pairs.distances) == ranks // 2


@pytest.mark.parametrize(("ratio", "fewest", "most"), [(2.0, 4, 1.001), (4.0, 4, 1.26), (8.0, 8, 1.5)])
def test_work_is_shared_out_as_far_as_bytes_allow(ratio: float, fewest: int, most: float) -> None:
    """Where several heads share those of keys, queries have more bytes than their keys."""
    for ranks in range(fewest, 17, 4):
        found = loads(pairs_of(ranks, (8, 8), CAUSAL, ratio, True))
        assert max(found) <= most * sum(found) / ranks
        kept = loads(pairs_of(ranks, (8, 8), CAUSAL, ratio, False))
        assert max(found) < max(kept) == ranks - 0.5


def test_nothing_is_moved_where_all_have_as_much() -> None:
    pairs = pairs_of(8, (4, 4), EVERY, 0.25, True)
    assert not pairs.by_keys
    assert not pairs.halved
    assert pairs.distances == list(range(1, 8))


def test_a_narrow_window_needs_the_neighbour_alone() -> None:
    assert pairs_of(8, (4, 4), (-4, 0), 1.0, False).distances == [1]


def test_an_odd_slice_of_keys_has_no_halves() -> None:
    assert not pairs_of(4, (3, 3), CAUSAL, 1.0, True).halved
