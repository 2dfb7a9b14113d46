"""Attention that serves networks: lengths beside the operands, lists, strategies of what stands behind value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import MspcError, Tensor, context, nn
from mspc.api.ops import FlashAttentionScore, FusedInferAttentionScore, IncreFlashAttention, PromptFlashAttention
from mspc.compiler.in_memory import compile_in_memory

QUERY = np.random.default_rng(0).normal(size=(2, 4, 8)).astype(np.float32)


def padded(lengths: Any) -> list[np.ndarray]:
    """Each sequence alone, as long as it is."""
    found: list[np.ndarray] = []
    for row, length in zip(QUERY, lengths, strict=True):
        x = Tensor(row[None, :length])
        found.append(FlashAttentionScore(2)(x, x, x)[3].asnumpy()[0])
    return found


@pytest.mark.parametrize("kind", [list, tuple, lambda x: Tensor(np.array(x))])
def test_a_padded_sequence_equals_itself_alone(kind: Any) -> None:
    x, lengths = Tensor(QUERY), kind([3, 2])
    out = PromptFlashAttention(2)(x, x, x, None, lengths, lengths).asnumpy()
    for row, expected in zip(out, padded([3, 2]), strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-6)
        assert not row[len(expected) :].any()


class Fused(nn.Cell):
    def __init__(self, strategy: Any = None, **fields: Any) -> None:
        super().__init__()
        self.attend = FusedInferAttentionScore(2, **fields).shard(strategy)

    def construct(self, q: Any, k: Any, v: Any, shift: Any, mask: Any) -> Any:
        return self.attend(q, [k], [v], shift, mask, [3, 2], (3, 2))[0]


def test_a_compiled_network_takes_lists_of_lengths_and_of_one_tensor() -> None:
    x = Tensor(QUERY)
    shift, mask = Tensor(np.zeros((2, 2, 4, 4), np.float32)), Tensor(np.zeros((2, 4, 4), bool))
    out = Fused()(x, x, x, shift, mask).asnumpy()
    for row, expected in zip(out, padded([3, 2]), strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-6)


def test_masks_and_shifts_of_the_fused_operator_are_cut_as_its_query_is() -> None:
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, dataset_strategy="full_batch")
    x = Tensor(QUERY)
    shift, mask = Tensor(np.zeros((2, 2, 4, 4), np.float32)), Tensor(np.zeros((2, 4, 4), bool))
    rows, keys = (2, 2, 2), (2, 1, 2)
    network = Fused((rows, (keys,), (keys,), (2, 1, 1, 1), (2, 2, 2), (1,), (1,)))
    facts = compile_in_memory(network, [x, x, x, shift, mask])
    (strategy,) = facts.strategies.values()
    assert strategy == [[2, 2, 2], [2, 1, 2], [2, 1, 2], [2, 2, 2, 1], [2, 2, 1], [2], [2]]


def test_one_query_ignores_its_length_and_the_sparse_mode() -> None:
    query, x = Tensor(QUERY[:, :1]), Tensor(QUERY)
    plain = FusedInferAttentionScore(2)(query, [x], [x])[0].asnumpy()
    lengths = Tensor(np.zeros(2, np.int64))
    same = FusedInferAttentionScore(2, sparse_mode=2)(query, [x], [x], None, None, lengths)[0].asnumpy()
    np.testing.assert_array_equal(same, plain)


def refused(call: Any) -> str:
    with pytest.raises(MspcError) as caught:
        call()
    return caught.value.message


def test_what_is_not_built_is_refused() -> None:
    x = Tensor(QUERY)
    scale = Tensor(np.ones(1, np.float32))
    assert refused(lambda: PromptFlashAttention(2)(x, x, x, None, None, None, None, scale)) == (
        "PromptFlashAttention: deq_scale1 must be None; quantised and paged caches are not built"
    )
    assert refused(lambda: IncreFlashAttention(2)(x, [x, x], [x, x])) == (
        "IncreFlashAttention: key holds 2 tensors, not 1; a tensor for each sequence is not built"
    )
    assert refused(lambda: IncreFlashAttention(2)(x, x, x)) == (
        "IncreFlashAttention: query has shape (2, 4, 8), more than one place for a sequence"
    )
    assert refused(lambda: PromptFlashAttention(2, input_layout="SBH")(x, x, x)) == (
        "PromptFlashAttention: input_layout is 'SBH', not one of BSH, BNSD"
    )
    assert refused(lambda: PromptFlashAttention(2, num_key_value_heads=1)(x, x, x)) == (
        "PromptFlashAttention: key has 2 heads, but num_key_value_heads is 1"
    )
    assert refused(lambda: PromptFlashAttention(2, sparse_mode=2)(x, x, x, Tensor(np.ones((4, 4), bool)))) == (
        "PromptFlashAttention: attn_mask of sparse_mode 2 is a triangle of (2048, 2048) or None, not a tensor of (4, 4)"
    )
    assert refused(lambda: PromptFlashAttention(2)(x, x, x, None, Tensor(np.ones(2, np.float32)))) == (
        "PromptFlashAttention: actual_seq_lengths is Float32, not a tensor of integers"
    )


def test_there_is_no_gradient() -> None:
    x = Tensor(QUERY)
    message = refused(lambda: ms.grad(PromptFlashAttention(2))(x, x, x))
    assert "it serves trained networks; FlashAttentionScore has one" in message


def by_hand(query: Any, key: Any, value: Any) -> Any:
    """Attention with scale 0.5 of [batch, heads, places, depth]."""
    scores = query @ key.swapaxes(-1, -2) * 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize("layout", ["BSH", "BNSD"])
@pytest.mark.parametrize("heads", [2, 4])
def test_keys_of_integers_are_read_with_scale_and_offset(layout: str, heads: int) -> None:
    random = np.random.default_rng(1)
    query = random.normal(size=(2, 4, 1, 3)).astype(np.float32)
    key, value = random.integers(-9, 9, (2, 2, 2, 5, 3)).astype(np.int8)
    scale, offset = random.uniform(0.1, 0.3, (2, 2, heads, 1, 3)).astype(np.float32)
    wide = [np.repeat(x, 4 // heads, 1) for x in (scale, offset)]
    read = [(np.repeat(x, 2, 1) + wide[1][i]) * wide[0][i] for i, x in enumerate((key, value))]
    expected = by_hand(query, *read)
    numbers = [scale, offset]
    if layout == "BSH":
        query, key, value, expected = (
            x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in (query, key, value, expected)
        )
        numbers = [x.reshape(2, -1) for x in numbers]
    rest = [None] * 8 + [Tensor(x) for x in numbers]
    out = IncreFlashAttention(4, layout, 0.5, 2)(Tensor(query), [Tensor(key)], [Tensor(value)], *rest)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-5)


def test_lengths_that_a_strategy_leaves_whole_go_with_the_batch() -> None:
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, dataset_strategy="full_batch")
    rows = (2, 1, 2)

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.attend = IncreFlashAttention(2).shard((rows, rows, rows, (1,), (1, 2)))

        def construct(self, q: Any, k: Any, lengths: Any, scale: Any) -> Any:
            return self.attend(q, [k], [k], None, lengths, *[None] * 6, scale)

    lengths, scale = Tensor(np.array([2, 3])), Tensor(np.ones((2, 8), np.float32))
    facts = compile_in_memory(Net(), [Tensor(QUERY[:, :1]), Tensor(QUERY), lengths, scale])
    (strategy,) = facts.strategies.values()
    assert strategy == [[2, 1, 2], [2, 1, 2], [2, 1, 2], [2], [1, 2]]


def test_scales_of_another_shape_are_refused() -> None:
    x = Tensor(QUERY[:, :1])
    with pytest.raises(MspcError, match=r"antiquant_scale has shape \(2, 3\), not \(2, 8\)"):
        IncreFlashAttention(2)(x, x, x, *[None] * 8, Tensor(np.ones((2, 3), np.float32)))
    with pytest.raises(MspcError, match="antiquant_offset needs antiquant_scale, which is None"):
        IncreFlashAttention(2)(x, x, x, *[None] * 9, Tensor(np.ones((2, 8), np.float32)))
