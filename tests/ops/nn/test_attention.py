"""FlashAttentionScore: values, gradients, masks, element types, slices of heads, mistakes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, TensorType, dtype_of
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import KEY_SHIFT, Pairs, Window, pairs_of
from mspc.ops.op import EVEN, Op, RankPlacement
from mspc.passes.lib.choices import make_choice
from tests.compiled_scripts import CompileOptions, verify_target, verify_text
from tests.errors import error_of
from tests.graphs import Builder, Graph, Layout, MspcError, Parameter, element_types
from tests.grouped import each
from tests.operators import JoinAttention, TupleGetItem
from tests.ops.backend import BACKEND
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator
from tests.ops.ranks import on_ranks
from tests.ops.simulate import arrays_of, check_gradient, operator_of, results_of, types_of
from tests.shares import crossed, is_taken
from tests.texts import IMPORTS

B, N, S, T, D = 2, 4, 5, 7, 3


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def written_out(q: Any, k: Any, v: Any, scale: float, shift: Any = 0.0, out_of_sight: Any = False) -> np.ndarray:
    """Attention of [batch, heads, sequence, depth], heads of key and value repeated."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    s = np.where(out_of_sight, -np.inf, q @ k.swapaxes(-1, -2) * scale + shift)
    power = np.exp(s - s.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True) @ v


def operands(heads: int = N, queries: int = S) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return drawn(B, N, queries, D), drawn(B, heads, T, D, seed=1), drawn(B, heads, T, D, seed=2)


def run(op: FlashAttentionScore, *inputs: np.ndarray) -> np.ndarray:
    top, total, _, out = op.run(BACKEND, *inputs)  # type: ignore[arg-type]  # the tests' backend
    assert (total == 1).all()
    assert top.shape[-1] == 1
    return out


TO_LAYOUT = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(0, 2, 1, 3),
    "BSH": lambda x: x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1),
    "SBH": lambda x: x.transpose(2, 0, 1, 3).reshape(x.shape[2], x.shape[0], -1),
}


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("layout", TO_LAYOUT)
def test_every_layout_is_the_same_attention(layout: str, heads: int) -> None:
    q, k, v = operands(heads)
    turn = TO_LAYOUT[layout]
    op = FlashAttentionScore(N, scale_value=0.4, input_layout=layout)
    out = run(op, *(np.ascontiguousarray(turn(x)) for x in (q, k, v)))
    np.testing.assert_allclose(out, turn(written_out(q, k, v, 0.4)), rtol=1e-12)


DISTANCE = np.arange(T)[None, :] - np.arange(S)[:, None]
BY_MODE = {
    "causal from the beginnings": ({"sparse_mode": 2}, DISTANCE > 0),
    "causal from the ends": ({"sparse_mode": 3}, DISTANCE > T - S),
    "band from the ends": ({"sparse_mode": 4, "pre_tokens": 2, "next_tokens": 0},
                           (DISTANCE > T - S) | (DISTANCE < T - S - 2)),
    "no mask, no band": ({"pre_tokens": 1, "next_tokens": 1}, DISTANCE > T),
}  # fmt: skip


@pytest.mark.parametrize("mode", BY_MODE)
def test_modes_say_which_keys_a_query_looks_at(mode: str) -> None:
    attributes, out_of_sight = BY_MODE[mode]
    q, k, v = operands()
    out = run(FlashAttentionScore(N, input_layout="BNSD", **attributes), q, k, v)
    np.testing.assert_allclose(out, written_out(q, k, v, 1.0, 0.0, out_of_sight), rtol=1e-12)


@pytest.mark.parametrize("shape", [(S, T), (B, 1, S, T), (B, N, S, T), (N, 1, T), (1, 1, 1, T)])
def test_shifts_and_masks_are_broadcast(shape: tuple[int, ...]) -> None:
    q, k, v = operands()
    shift, mask = drawn(*shape, seed=3), np.random.default_rng(4).random(shape) < 0.4
    mask[..., 0] = False
    op = FlashAttentionScore(N, scale_value=0.7, input_layout="BNSD", optional=("real_shift", "attn_mask"))
    expected = written_out(q, k, v, 0.7, shift, mask)
    np.testing.assert_allclose(run(op, q, k, v, shift, mask), expected, rtol=1e-12)
    np.testing.assert_allclose(run(op, q, k, v, shift, mask.astype(np.uint8)), expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(S, T), (B, 1, S, T), (B, N, S, T)])
def test_weights_are_dropped_and_the_others_made_up_for_them(shape: tuple[int, ...]) -> None:
    q, k, v = operands(2)
    mask, kept = DISTANCE > 2, np.random.default_rng(5).random(shape) < 0.6
    op = FlashAttentionScore(
        N, keep_prob=0.6, scale_value=0.7, input_layout="BNSD", optional=("drop_mask", "attn_mask")
    )
    k4, v4 = (np.repeat(x, 2, axis=1) for x in (k, v))
    power = np.exp(np.where(mask, -np.inf, q @ k4.swapaxes(-1, -2) * 0.7))
    expected = power / power.sum(-1, keepdims=True) * kept / 0.6 @ v4
    for dtype in (np.bool_, np.uint8):
        np.testing.assert_allclose(run(op, q, k, v, kept.astype(dtype), mask), expected, rtol=1e-12)


CAUSAL = IMPORTS + """
from mindspore.ops import operations as P

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, dataset_strategy="full_batch")
draw = np.random.default_rng(0)
x, y, z = (Tensor(draw.standard_normal((2, n, 16)).astype(np.float32)) for n in (8, 12, 12))
triangle = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.attention = P.FlashAttentionScore(4, input_layout="BSH", sparse_mode=MODE, pre_tokens=3, next_tokens=1)
        self.attention.shard(((2, 2, 2), (2, 1, 2), (2, 1, 2), ENTRY))
    def construct(self, q, k, v):
        return self.attention(q, k, v, None, None, None, triangle)[3]

ms.value_and_grad(lambda q, k, v: ops.sin(Net()(q, k, v)).sum(), (0, 1, 2))(x, y, z)
"""


@pytest.mark.parametrize("mode", [2, 4])
def test_queries_that_are_cut_look_at_what_they_would_look_at_whole(tmp_path: Path, mode: int) -> None:
    verify_text(tmp_path, CAUSAL.replace("MODE", str(mode)).replace("ENTRY", "(1, 1)"))


def test_a_triangle_that_is_not_read_has_an_entry_in_the_strategy_and_no_cuts(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(CAUSAL.replace("MODE", "2").replace("ENTRY", "(2, 1)"))
    with pytest.raises(MspcError, match="the strategy has 4 entries, but the operator has 3 tensor inputs"):
        verify_target(str(tmp_path / "net.py"), CompileOptions(), seed=1)


def test_a_mask_beside_a_band() -> None:
    q, k, v = operands()
    mask = np.random.default_rng(4).random((S, T)) < 0.3
    mask[np.arange(S), np.arange(S)] = False
    op = FlashAttentionScore(N, input_layout="BNSD", pre_tokens=2, next_tokens=1, optional=("attn_mask",))
    out_of_sight = mask | (DISTANCE > 1) | (DISTANCE < -2)
    np.testing.assert_allclose(run(op, q, k, v, mask), written_out(q, k, v, 1.0, 0.0, out_of_sight), rtol=1e-12)
    alone = FlashAttentionScore(
        N, input_layout="BNSD", pre_tokens=2, next_tokens=1, sparse_mode=1, optional=("attn_mask",)
    )
    np.testing.assert_allclose(run(alone, q, k, v, mask), written_out(q, k, v, 1.0, 0.0, mask), rtol=1e-12)


def test_a_query_that_looks_at_no_key_gives_zeros_and_no_gradients() -> None:
    q, k, v = operands()
    mask = np.zeros((S, T), np.bool_)
    mask[2] = True
    op = FlashAttentionScore(N, input_layout="BNSD", optional=("attn_mask",))
    with np.errstate(all="raise", under="ignore"):
        top, _, _, out = op.run(BACKEND, q, k, v, mask)  # type: ignore[arg-type]  # the tests' backend
        assert (out[:, :, 2] == 0).all()
        assert (top[:, :, 2] == -np.inf).all()
        grad = FlashAttentionScoreGrad(N, input_layout="BNSD", optional=("attn_mask",))
        dq, dk, dv = results_of(grad, [q, k, v, np.ones_like(out), mask, top, out])
    assert (dq[:, :, 2] == 0).all()
    assert np.isfinite(dk).all()
    assert np.isfinite(dv).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2), (np.float32, 1e-6)])
def test_narrow_numbers_are_summed_in_float32(dtype: Any, tolerance: float) -> None:
    q, k, v = (x.astype(dtype) for x in operands())
    top, total, none, out = FlashAttentionScore(N, input_layout="BNSD").run(BACKEND, q, k, v)  # type: ignore[arg-type]
    assert (top.dtype, total.dtype, none.dtype, out.dtype) == (np.float32, np.float32, q.dtype, q.dtype)
    expected = written_out(*(x.astype(np.float64) for x in (q, k, v)), 1.0)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


OF_NETWORKS = [i for i, s in enumerate(FlashAttentionScore.samples) if KEY_SHIFT not in s.fields.get("optional", ())]
"""Without what only a rank's own graph has."""


@pytest.mark.parametrize("index", OF_NETWORKS)
def test_gradient_agrees_with_differences(index: int) -> None:
    op, spec = operator_of("FlashAttentionScore", index)
    types = types_of(spec)
    arrays = arrays_of("FlashAttentionScore", spec, types)
    for array in arrays:
        if array.dtype == np.bool_:
            array[..., 0] = False
    check_gradient(op, arrays, types, [3])


def test_what_is_added_for_each_key_is_the_same_for_all_queries_and_has_no_gradient() -> None:
    b = Builder(Graph("attention"))
    q, shift = Parameter("q", TensorType(FLOAT64, (2, 4, 8))), Parameter("shift", TensorType(FLOAT64, (4, 4)))
    op = FlashAttentionScore(2, optional=(KEY_SHIFT,))
    with pytest.raises(MspcError, match="differs from query to query"):
        b.emit(op, q, q, q, shift)
    node = b.emit(op, q, q, q, Parameter("shift", TensorType(FLOAT64, (2, 1, 1, 4))))
    with pytest.raises(MspcError, match="has no gradient"):
        op.gradient(b, node.inputs, node, [None, None, None, q])


def test_statistics_have_no_gradient() -> None:
    graph = Graph("attention")
    b = Builder(graph)
    q = Parameter("q", TensorType(FLOAT64, (2, 4, 8)))
    node = b.emit(FlashAttentionScore(2), q, q, q)
    top = b.emit(TupleGetItem(0), node)
    with pytest.raises(MspcError, match="only attention_out has a gradient"):
        node.op.gradient(b, node.inputs, node, [top, None, None, None])  # type: ignore[attr-defined]  # an Op
    assert node.op.gradient(b, node.inputs, node, [None] * 4) == [None] * 3  # type: ignore[attr-defined]  # an Op


# Ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "query", "key", "rule"),
    [
        ("BSH", (8, 5, 32), (8, 7, 16), "a b (c d e!), a f! (c e!), a f! (c g!) -> a (c d) b 1, a (c d) b 1, 1, "
                                        "a b (c d g!)"),
        ("BNSD", (8, 4, 5, 8), (8, 4, 7, 8), "a b c d!, a b e! d!, a b e! f! -> a b c 1, a b c 1, 1, a b c f!"),
    ],
)  # fmt: skip
def test_batch_heads_and_queries_may_be_cut(layout: str, query: Any, key: Any, rule: str) -> None:
    op = FlashAttentionScore(4, input_layout=layout)
    found = op.parsed_rule(*(TensorType(FLOAT32, shape) for shape in (query, key, key)))
    names = dict(zip(found.names, "abcdefg", strict=False))
    text = str(found)
    for name, other in names.items():
        text = text.replace(name, other.upper())
    assert text.lower() == rule


def test_a_rank_has_its_heads_only() -> None:
    op = FlashAttentionScore(8, input_layout="BSH")
    types = tuple(TensorType(FLOAT32, shape) for shape in ((4, 3, 32), (4, 3, 16), (4, 3, 16)))
    layout = Layout.of((2, 4), [(0,), (), (1,)])
    placement = RankPlacement(3, types, (layout,) * 3, (), ())
    assert op.localize(placement) == FlashAttentionScore(2, input_layout="BSH")


def test_heads_stay_whole(tmp_path: Path) -> None:
    old, new = "((2, 2, 2), (2, 1, 2), (2, 1, 2), ENTRY)", "((1, 1, 8), (1, 1, 8), (1, 1, 8), (1, 1))"
    assert old in CAUSAL
    (tmp_path / "net.py").write_text(CAUSAL.replace(old, new).replace("MODE", "2"))
    error = error_of(verify_target, str(tmp_path / "net.py"), CompileOptions(), seed=1)
    message = "dimension 2 of input 0 is 4 parts that must not be sharded, and 8 does not divide 4"
    assert message in error.render()


# Calls -----------------------------------------------------------------------------------------------------


def test_called_as_in_mindspore() -> None:
    q, k, v = (x.astype(np.float32) for x in operands())
    mask = np.triu(np.ones((S, T), np.bool_), 1)
    score = ops.FlashAttentionScore(N, scale_value=0.5, input_layout="BNSD")
    tensors = [Tensor(x) for x in (q, k, v)]
    _, _, _, out = score(*tensors, None, None, None, Tensor(mask), None)
    np.testing.assert_allclose(out.asnumpy(), written_out(q, k, v, 0.5, 0.0, mask), rtol=1e-5, atol=1e-6)
    causal = ops.flash_attention_score(*tensors, N, scalar_value=0.5, input_layout="BNSD", sparse_mode=2)
    np.testing.assert_array_equal(causal.asnumpy(), out.asnumpy())
    triangle = Tensor(np.triu(np.ones((2048, 2048), np.bool_), 1))
    score = ops.FlashAttentionScore(N, scale_value=0.5, input_layout="BNSD", sparse_mode=2)
    np.testing.assert_array_equal(score(*tensors, None, None, None, triangle)[3].asnumpy(), out.asnumpy())


def test_text_shows_only_what_is_not_the_default() -> None:
    op = FlashAttentionScore(8, scale_value=0.125)
    assert op.attributes() == {"head_num": 8, "scale_value": 0.125}
    assert FlashAttentionScoreShiftGrad(8, optional=("real_shift",)).attributes() == {
        "head_num": 8, "optional": ("real_shift",),
    }  # fmt: skip


X = Tensor(np.ones((2, 4, 8), np.float32))
MISTAKES = [
    ({"keep_prob": 0.9}, (X, X, X), "keep_prob 0.9 needs drop_mask"),
    ({"keep_prob": 0.0}, (X, X, X), "keep_prob is 0.0, not above 0 and at most 1"),
    ({"keep_prob": 1.5}, (X, X, X), "keep_prob is 1.5, not above 0 and at most 1"),
    ({"input_layout": "TND"}, (X, X, X), "input_layout 'TND' needs actual_seq_qlen"),
    ({"input_layout": "TNH"}, (X, X, X), "input_layout is 'TNH', not one of BSH, BNSD, BSND, SBH"),
    ({"input_layout": "BNSD"}, (X, X, X), "query has shape (2, 4, 8), but input_layout 'BNSD' has 4 dimensions"),
    ({"sparse_mode": 5}, (X, X, X), "sparse_mode is 5; known are 0 to 4"),
    ({"sparse_mode": 1}, (X, X, X), "sparse_mode 1 needs attn_mask"),
    ({"head_num": 3}, (X, X, X), "head_num 3 does not divide the hidden size 8 of query"),
    ({"head_num": 0}, (X, X, X), "head_num is 0"),
    ({}, (X, X, X, None, Tensor(np.ones((4, 4), np.float32))), "drop_mask is Float32, not Bool or UInt8"),
    ({}, (X, X, X, None, None, X), "padding_mask must be None; it is not built"),
    ({}, (X, X, X, None, None, None, Tensor(np.ones((4, 4), np.float32))), "attn_mask is Float32, not Bool or UInt8"),
    ({"sparse_mode": 2}, (X, X, X, None, None, None, X),
     "attn_mask of sparse_mode 2 is a triangle of (2048, 2048) or None, not a tensor of (2, 4, 8)"),
    ({}, (X, Tensor(np.ones((2, 4, 6), np.float32)), X),
     "the hidden size 6 of key is no multiple of the head size 4 (query has 2 heads in 8)"),
    ({}, (X, Tensor(np.ones((2, 4, 12), np.float32)), Tensor(np.ones((2, 4, 12), np.float32))),
     "the 3 heads of key do not divide the 2 heads of query"),
    ({}, (X, X, Tensor(np.ones((2, 5, 8), np.float32))), "dimension 1 of input 2 is 5, but dimension 1 of input 1"),
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "inputs", "message"), MISTAKES)
def test_mistakes(attributes: Any, inputs: Any, message: str) -> None:
    error = error_of(lambda: ops.FlashAttentionScore(**{"head_num": 2, **attributes})(*inputs))
    assert error.message.startswith(f"FlashAttentionScore: {message}")


def test_operands_of_wrong_types() -> None:
    op = FlashAttentionScore(2)
    x, y, z = (TensorType(t, (2, 4, 8)) for t in (FLOAT16, BFLOAT16, INT32))
    with pytest.raises(MspcError, match="input 0 is Float16 and input 1 is BFloat16"):
        op.infer(x, y, y)
    with pytest.raises(MspcError, match="input 0 is Int32, not a floating-point tensor"):
        op.infer(z, z, z)
    with pytest.raises(MspcError, match="takes 3 tensors, not 4"):
        op.infer(x, x, x, TensorType(BOOL, (4, 4)))


@pytest.mark.parametrize("layout", ["BSH", "BNSD"])
@pytest.mark.parametrize("causal", [False, True])
def test_documents_of_a_sequence_look_at_themselves_alone(layout: str, causal: bool) -> None:
    random = np.random.default_rng(4)
    query, key, value, weights = random.normal(size=(4, 2, 2, 7, 3)).astype(np.float32)
    ends = (2, 5)  # what stands behind the last one gives zeros

    def attended(*operands: Any, **given: Any) -> tuple[Any, ...]:
        parts = [x if layout == "BNSD" else x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], 6) for x in operands]
        op = ops.FlashAttentionScore(2, scale_value=0.5, input_layout=layout, sparse_mode=2 if causal else 0)
        rest = [None] * 5 + [given.get("ends")] * 2
        *inputs, weight = [Tensor(np.ascontiguousarray(part)) for part in parts]
        loss = ops.value_and_grad(lambda q, k, v: (op(q, k, v, *rest)[3] * weight).sum(), (0, 1, 2))
        return op(*inputs, *rest)[3].asnumpy(), *(g.asnumpy() for g in loss(*inputs)[1])

    whole = attended(query, key, value, weights, ends=ends)
    axis = 2 if layout == "BNSD" else 1
    for first, last in ((0, 2), (2, 5)):
        alone = attended(*(x[:, :, first:last] for x in (query, key, value, weights)))
        for found, expected in zip(whole, alone, strict=True):
            part = np.take(found, range(first, last), axis)
            np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-6)
    assert not any(np.take(found, [5, 6], axis).any() for found in whole)


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


FORM_CAUSAL, EVERY = (None, 0), (None, None)


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


@pytest.mark.parametrize("window", [FORM_CAUSAL, EVERY, (-9, 0), (-20, 7), (3, 30)])
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
    pairs = pairs_of(ranks, (8, 8), FORM_CAUSAL, 1.0, True)
    assert max(loads(pairs)) == min(loads(pairs)) == ranks / 2
    assert pairs.sent(1, 1) <= (ranks - 1) / 2 + 0.25
    assert len(pairs.distances) == ranks // 2


@pytest.mark.parametrize(("ratio", "fewest", "most"), [(2.0, 4, 1.001), (4.0, 4, 1.26), (8.0, 8, 1.5)])
def test_work_is_shared_out_as_far_as_bytes_allow(ratio: float, fewest: int, most: float) -> None:
    """Where several heads share those of keys, queries have more bytes than their keys."""
    for ranks in range(fewest, 17, 4):
        found = loads(pairs_of(ranks, (8, 8), FORM_CAUSAL, ratio, True))
        assert max(found) <= most * sum(found) / ranks
        kept = loads(pairs_of(ranks, (8, 8), FORM_CAUSAL, ratio, False))
        assert max(found) < max(kept) == ranks - 0.5


def test_nothing_is_moved_where_all_have_as_much() -> None:
    pairs = pairs_of(8, (4, 4), EVERY, 0.25, True)
    assert not pairs.by_keys
    assert not pairs.halved
    assert pairs.distances == list(range(1, 8))


def test_a_narrow_window_needs_the_neighbour_alone() -> None:
    assert pairs_of(8, (4, 4), (-4, 0), 1.0, False).distances == [1]


def test_an_odd_slice_of_keys_has_no_halves() -> None:
    assert not pairs_of(4, (3, 3), FORM_CAUSAL, 1.0, True).halved


LAYOUTS = ("BSH", "SBH", "BNSD", "BSND")
BATCH, CONTEXT_HEADS, CONTEXT_DEPTH = 2, 4, 3


@dataclass(frozen=True)
class Case:
    """An attention. keys: for every 4 queries of a rank. optional: shapes of masks, of 4 places a rank, by name; of
    "ends" shares of all places."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    key_heads: int = CONTEXT_HEADS
    keys: int = 4
    optional: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


CASES = {
    "all keys": Case(),
    "causal": Case({"sparse_mode": 2}),
    "causal, an odd number of keys": Case({"sparse_mode": 2}, keys=3),
    "causal from the ends": Case({"sparse_mode": 3}, keys=6),
    "a band": Case({"sparse_mode": 4, "pre_tokens": 5, "next_tokens": 2}),
    "keys behind alone": Case({"sparse_mode": 4, "pre_tokens": -3, "next_tokens": 9}),
    "shared heads of keys": Case({"sparse_mode": 2}, key_heads=2),
    "one head of keys": Case({"sparse_mode": 2}, key_heads=1),
    "drawn": Case({"sparse_mode": 2, "keep_prob": 0.6, "Seed0": 3, "Seed1": 4}),
    "a mask of keys": Case({"sparse_mode": 1}, optional={"attn_mask": (BATCH, 1, 1, "keys")}),
    "a mask for every query": Case({"sparse_mode": 1}, optional={"attn_mask": (1, CONTEXT_HEADS, "queries", "keys")}),
    "a mask of queries": Case({"sparse_mode": 1}, optional={"attn_mask": (BATCH, 1, "queries", 1)}),
    "dropped by a mask": Case({"sparse_mode": 2, "keep_prob": 0.7}, optional={"drop_mask": ("queries", "keys")}),
    "documents": Case(
        {"sparse_mode": 2}, optional={"actual_seq_qlen": (0.3, 0.4, 0.9), "actual_seq_kvlen": (0.2, 0.6, 1)}
    ),
}  # fmt: skip


def context_operands(case: Case, layout: str, ranks: int) -> list[Any]:
    random = np.random.default_rng(ranks)
    lengths = {"queries": 4 * ranks, "keys": case.keys * ranks}

    def drawn(heads: int, length: int) -> Any:
        shape = {"BSH": (BATCH, length, heads * CONTEXT_DEPTH), "SBH": (length, BATCH, heads * CONTEXT_DEPTH),
                 "BNSD": (BATCH, heads, length, CONTEXT_DEPTH),
                 "BSND": (BATCH, length, heads, CONTEXT_DEPTH)}[layout]  # fmt: skip
        return random.normal(size=shape)

    found = [drawn(CONTEXT_HEADS, lengths["queries"])] + [drawn(case.key_heads, lengths["keys"]) for _ in range(2)]
    for name, sizes in case.optional.items():
        if name.startswith("actual"):
            all_places = lengths["queries" if name.endswith("qlen") else "keys"]
            found.append(np.array([int(share * all_places) for share in sizes]))
        else:
            found.append(random.random([lengths.get(n, n) for n in sizes]) < 0.6)
    return found


def check(op: Op, inputs: list[Any], ranks: int) -> tuple[Any, ...]:
    """The results of an operator on one rank, which its slices on several ranks equal."""
    types = [TensorType(dtype_of(x.dtype), x.shape) for x in inputs]
    rule = op.parsed_rule(*types)
    choice = make_choice(rule, (ranks,), [(0,) if name == "c" else () for name in rule.names])
    alone = results_of(op, inputs)
    made = element_types(op.infer(*types))
    for rank, (results, _, _) in enumerate(on_ranks(op, ranks, types, choice.inputs, made, choice.outputs, inputs)):
        for wanted, found, layout in zip(alone, results, choice.outputs, strict=True):
            np.testing.assert_allclose(found, wanted[layout.slices_for(rank, wanted.shape)], rtol=1e-11, atol=1e-12)
    return alone


@pytest.mark.parametrize(
    ("name", "ranks"), [each for place, each in enumerate(product(CASES, (2, 3, 4, 8))) if is_taken(place, 5)]
)
def test_slices_equal_the_whole(name: str, ranks: int) -> None:
    case = CASES[name]
    for layout in LAYOUTS:
        given = {"scale_value": 0.5, "input_layout": layout, "context": ranks, "optional": tuple(case.optional)}
        settings = {**given, **case.attributes}
        inputs = context_operands(case, layout, ranks)
        statistics, _, _, out = check(FlashAttentionScore(CONTEXT_HEADS, **settings), inputs, ranks)
        dout = np.random.default_rng(5).normal(size=out.shape)
        gradient = FlashAttentionScoreGrad(CONTEXT_HEADS, **settings)
        check(gradient, [*inputs[:3], dout, *inputs[3:], statistics, out], ranks)


JOIN_BATCH, JOIN_HEADS, QUERIES, KEYS, JOIN_DEPTH = 2, 3, 5, 8, 4


def laid(x: Any, layout: str) -> Any:
    """[batch, heads, sequence, depth] in a layout."""
    if layout == "BNSD":
        return x
    turned = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    if layout == "BSND":
        return turned
    flat = turned.reshape(*turned.shape[:2], -1)
    return flat if layout == "BSH" else np.ascontiguousarray(flat.transpose(1, 0, 2))


def slices(layout: str) -> tuple[list[Any], list[Any]]:
    """(attention and statistics of each half of the keys, those of all), causal from the third key on: some queries see
    no key of one half, the first two none at all."""
    random = np.random.default_rng(1)
    query, key, value = (random.normal(size=(JOIN_BATCH, JOIN_HEADS, n, JOIN_DEPTH)) for n in (QUERIES, KEYS, KEYS))

    def found(first: int, last: int) -> list[Any]:
        op = FlashAttentionScore(
            JOIN_HEADS,
            input_layout=layout,
            sparse_mode=2,
            first_query=0,
            all_queries=KEYS,
            key_slice=(first + 2, KEYS + 2),
        )
        arrays = [laid(x, layout) for x in (query, key[:, :, first:last], value[:, :, first:last])]
        statistics, _, _, out = op.run(BACKEND, *arrays)
        return [out, statistics]

    return [*found(0, KEYS // 2 - 2), *found(KEYS // 2 - 2, KEYS)], found(0, KEYS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_joined_slices_are_the_whole(layout: str) -> None:
    parts, whole = slices(layout)
    assert np.isneginf(whole[1]).any()
    joined: Any = JoinAttention(layout).run(BACKEND, *parts)
    for one, wanted in zip(joined, whole, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.skipif(NEEDED is None, reason="needs g++")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("first", "second", "bound"),
    [(np.float64, np.float64, 1e-12), (np.float32, np.float32, 1e-6), (np.float32, ml_dtypes.bfloat16, 1e-6)],
)
def test_the_kernel_does_as_numpy(layout: str, first: Any, second: Any, bound: float, tmp_path: Path) -> None:
    (one, of_one, other, of_other), _ = slices(layout)
    wide = np.float64 if first == np.float64 else np.float32
    given = [one.astype(first), of_one.astype(wide), other.astype(second), of_other.astype(wide)]
    wanted: Any = JoinAttention(layout).run(BACKEND, *(x.astype(np.float64) for x in given))
    out = [np.full(x.shape, np.nan, wide) for x in wanted]
    launch = JoinAttention(layout).launch(Emulator(tmp_path), out, *given)  # type: ignore[arg-type]  # the emulator
    assert launch is not None
    launch()
    for got, expected in zip(out, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=bound, atol=bound)


PACKED_HEADS, PACKED_DEPTH = 4, 3
PACKED_QUERIES, PACKED_KEYS = (3, 4, 9), (2, 6, 8)
"""Ends of the sequences; the last of the queries look at two keys."""


def packed_drawn(tokens: int, heads: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, heads, PACKED_DEPTH))


def inputs(key_heads: int) -> tuple[np.ndarray, ...]:
    return packed_drawn(10, PACKED_HEADS, 1), packed_drawn(9, key_heads, 2), packed_drawn(9, key_heads, 3)


def packed_attention(layout: str, mode: int, **settings: Any) -> Any:
    return ops.FlashAttentionScore(PACKED_HEADS, scale_value=0.5, input_layout=layout, sparse_mode=mode, **settings)


def alone(mode: int, arrays: tuple[Any, ...], **settings: Any) -> Any:
    """The sequences one by one; tokens behind the last give zeros."""
    q, k, v = arrays
    op, found = packed_attention("BSND", mode, **settings), []
    for i, (qe, ke) in enumerate(zip(PACKED_QUERIES, PACKED_KEYS, strict=True)):
        qs, ks = (0, 0) if i == 0 else (PACKED_QUERIES[i - 1], PACKED_KEYS[i - 1])
        parts = [ops.expand_dims(x, 0) for x in (q[qs:qe], k[ks:ke], v[ks:ke])]
        mask = Tensor(np.zeros((qe - qs, ke - ks), bool)) if mode == 0 else None
        found.append(ops.squeeze(op(*parts, None, None, None, mask)[3], 0))
    return ops.concat([*found, ops.zeros_like(q[PACKED_QUERIES[-1] :])], 0)


@pytest.mark.parametrize(("mode", "key_heads", "lists"), crossed([0, 2, 3, 4], [4, 2, 1], [tuple, list, Tensor]))
def test_sequences_do_not_see_each_other(mode: int, key_heads: int, lists: Any) -> None:
    settings = {"pre_tokens": 2, "next_tokens": 1} if mode == 4 else {}
    arrays = tuple(Tensor(x) for x in inputs(key_heads))
    ends = (lists(PACKED_QUERIES), lists(PACKED_KEYS))
    weights = Tensor(packed_drawn(10, PACKED_HEADS, 4))

    def packed(q: Any, k: Any, v: Any) -> Any:
        return (
            packed_attention("TND", mode, **settings)(q, k, v, None, None, None, None, None, *ends)[3] * weights
        ).sum()

    def apart(q: Any, k: Any, v: Any) -> Any:
        return (alone(mode, (q, k, v), **settings) * weights).sum()

    found = ms.value_and_grad(packed, (0, 1, 2))(*arrays)
    expected = ms.value_and_grad(apart, (0, 1, 2))(*arrays)
    np.testing.assert_allclose(found[0].asnumpy(), expected[0].asnumpy(), rtol=1e-12)
    for left, right in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(left.asnumpy(), right.asnumpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "operands", "message"),
    [
        ({}, {}, "input_layout 'TND' needs actual_seq_qlen"),
        ({}, {"actual_seq_qlen": (8,)}, "input_layout 'TND' needs actual_seq_kvlen"),
        ({"keep_prob": 0.5}, {"actual_seq_qlen": (8,), "actual_seq_kvlen": (8,)}, "has keep_prob 1 and sparse_mode"),
        ({}, {"actual_seq_qlen": (8,), "actual_seq_kvlen": (8,), "real_shift": 1}, "real_shift must be None"),
        ({}, {"actual_seq_qlen": (8,), "actual_seq_kvlen": (8,), "attn_mask": Tensor([[1]])}, "takes no attn_mask but"),
        ({}, {"actual_seq_qlen": (4, 3), "actual_seq_kvlen": (8, 8)}, "actual_seq_qlen [4, 3] must ascend"),
        ({}, {"actual_seq_qlen": (8,), "actual_seq_kvlen": (80,)}, "actual_seq_kvlen [80] must ascend"),
        ({}, {"actual_seq_qlen": (8.5,), "actual_seq_kvlen": (8,)}, "actual_seq_qlen"),
    ],
)
def test_what_is_wrong_is_named(settings: Any, operands: Any, message: str) -> None:
    names = ("real_shift", "drop_mask", "padding_mask", "attn_mask", "prefix", "actual_seq_qlen", "actual_seq_kvlen")
    with pytest.raises((MspcError, ValueError, TypeError)) as refused:
        packed_attention("TND", 0, **settings)(*[Tensor(x) for x in inputs(4)], *[operands.get(name) for name in names])
    assert message in str(refused.value)
