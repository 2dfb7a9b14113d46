"""The two forms of attention, and what the busiest rank of each has to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mspc.ir.layout import Layout
from mspc.ir.types import BFLOAT16, TensorType
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.op import EVEN

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
