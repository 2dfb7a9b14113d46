"""FlashAttentionScore: values, gradients, masks, element types, slices of heads, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc import Tensor, ops
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import KEY_SHIFT
from mspc.ops.op import RankPlacement
from tests.compiled_scripts import verify_text
from tests.ops.simulate import BACKEND, arrays_of, check_gradient, operator_of, results_of, types_of

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


CAUSAL = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
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
    with pytest.raises(MspcError) as raised:
        verify_target(str(tmp_path / "net.py"), CompileOptions(), seed=1)
    message = "dimension 2 of input 0 is 4 parts that must not be sharded, and 8 does not divide 4"
    assert message in raised.value.render()


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
    with pytest.raises(MspcError) as raised:
        ops.FlashAttentionScore(**{"head_num": 2, **attributes})(*inputs)
    assert raised.value.message.startswith(f"FlashAttentionScore: {message}")


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
