"""The two forms of attention, and what the busiest rank of each has to do.

Pairs of slices of a sequence are worked on once each, evenly where bytes allow it, and send no more than a ring.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from mspc.ir.layout import Layout
from mspc.ir.types import BFLOAT16, TensorType
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.nn.attention_base import Pairs, Window, pairs_of
from mspc.ops.op import EVEN
from tests.grouped import each

RANKS, WORDS, DEPTH = 8, 4096, 64
SLICES = Layout.of((RANKS,), [(), (0,), (), ()])
WHOLE = Layout.of((RANKS,), [(), (), (), ()])
HEADS = Layout.of((RANKS,), [(), (), (0,), ()])


def attention(mode: int = 2, **more: object) -> FlashAttentionScore:
    return FlashAttentionScore(8, input_layout="BSND", sparse_mode=mode, **more)  # type: ignore[arg-type]


def types(key_heads: int = 8) -> list[TensorType]:
    return [TensorType(BFLOAT16, (1, WORDS, heads, DEPTH)) for heads in (8, key_heads, key_heads)]


@pytest.mark.parametrize(
    ("key_heads", "keys", "busiest"), [(8, SLICES, 1.0), (2, SLICES, 1.13), (1, SLICES, 1.38), (8, WHOLE, 1.88)]
)
def test_the_busiest_rank_of_a_causal_attention(key_heads: int, keys: Layout, busiest: float) -> None:
    """The figures of the page on long sequences; a mean rank sees half of the scores."""
    layouts = [SLICES, keys, keys]
    op = attention().in_form(layouts)
    found = op.uneven(types(key_heads), layouts)
    assert found.busiest == pytest.approx(busiest, abs=0.006)
    mean = op.operations(types(key_heads)) / 2 / RANKS
    assert found.operations == pytest.approx((found.busiest - 1) * mean, rel=1e-3)
    assert bool(found.rounds) == bool(found.axes) == (keys is SLICES)


def test_ranks_with_all_places_of_their_heads_do_the_same() -> None:
    assert attention().uneven(types(), [HEADS] * 3) is EVEN
    assert attention(0).uneven(types(), [SLICES, WHOLE, WHOLE]).busiest == 1.0


def test_layouts_say_the_form_and_gradients_follow() -> None:
    op = attention()
    ring = op.in_form([SLICES] * 3)
    assert ring == replace(op, context=RANKS)
    assert ring.in_form([SLICES, WHOLE, WHOLE]) == op
    assert op.in_form([HEADS] * 3) is op
    grad = FlashAttentionScoreGrad(8, input_layout="BSND", sparse_mode=2)
    assert grad.like_forward(ring) == replace(grad, context=RANKS)
    assert grad.like_forward(op) is grad


def test_there_is_no_ring_where_slices_of_keys_cannot_be_apart() -> None:
    form = attention().other_form(types(), 12)
    assert form is not None
    assert form.context == 4
    assert attention().other_form(types(), 7) is None
    shifted = attention(optional=("real_shift",))
    assert shifted.other_form([*types(), TensorType(BFLOAT16, (1, 1, 1, WORDS))], RANKS) is None
    assert shifted.in_form([SLICES] * 3) is shifted


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
