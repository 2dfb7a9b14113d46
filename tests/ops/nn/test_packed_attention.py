"""Attention of sequences of several lengths in one tensor: each is what it would be alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.ir.diagnostics import MspcError
from tests.shares import crossed

HEADS, DEPTH = 4, 3
QUERIES, KEYS = (3, 4, 9), (2, 6, 8)
"""Ends of the sequences; the last of the queries look at two keys."""


def drawn(tokens: int, heads: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, heads, DEPTH))


def inputs(key_heads: int) -> tuple[np.ndarray, ...]:
    return drawn(10, HEADS, 1), drawn(9, key_heads, 2), drawn(9, key_heads, 3)


def attention(layout: str, mode: int, **settings: Any) -> Any:
    return ops.FlashAttentionScore(HEADS, scale_value=0.5, input_layout=layout, sparse_mode=mode, **settings)


def alone(mode: int, arrays: tuple[Any, ...], **settings: Any) -> Any:
    """The sequences one by one; tokens behind the last give zeros."""
    q, k, v = arrays
    op, found = attention("BSND", mode, **settings), []
    for i, (qe, ke) in enumerate(zip(QUERIES, KEYS, strict=True)):
        qs, ks = (0, 0) if i == 0 else (QUERIES[i - 1], KEYS[i - 1])
        parts = [ops.expand_dims(x, 0) for x in (q[qs:qe], k[ks:ke], v[ks:ke])]
        mask = Tensor(np.zeros((qe - qs, ke - ks), bool)) if mode == 0 else None
        found.append(ops.squeeze(op(*parts, None, None, None, mask)[3], 0))
    return ops.concat([*found, ops.zeros_like(q[QUERIES[-1] :])], 0)


@pytest.mark.parametrize(("mode", "key_heads", "lists"), crossed([0, 2, 3, 4], [4, 2, 1], [tuple, list, Tensor]))
def test_sequences_do_not_see_each_other(mode: int, key_heads: int, lists: Any) -> None:
    settings = {"pre_tokens": 2, "next_tokens": 1} if mode == 4 else {}
    arrays = tuple(Tensor(x) for x in inputs(key_heads))
    ends = (lists(QUERIES), lists(KEYS))
    weights = Tensor(drawn(10, HEADS, 4))

    def packed(q: Any, k: Any, v: Any) -> Any:
        return (attention("TND", mode, **settings)(q, k, v, None, None, None, None, None, *ends)[3] * weights).sum()

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
        attention("TND", 0, **settings)(*[Tensor(x) for x in inputs(4)], *[operands.get(name) for name in names])
    assert message in str(refused.value)
