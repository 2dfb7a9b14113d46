"""Attention: scores, their softmax and the mix of values as one operator, with PyTorch's flags."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.ir.types import BOOL, FLOAT32, HALVES
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.known_values import KnownTensor, allows, band_of


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any
) -> Any:
    """softmax(query @ key^T * scale + mask) @ value. A Bool mask says what is looked at; a pair of numbers, how many
    keys before and behind a query's own place."""
    heads, depth = query.shape[-3], query.shape[-1]
    batch = query.shape[:-3]
    q, k, v = _in_four(query), _in_four(key), _in_four(value)
    factor = 1 / math.sqrt(depth) if scale is None else scale
    shift, hidden = None, None
    mode, before, behind = 2 if is_causal else 0, 2147483647, 2147483647
    if isinstance(attn_mask, tuple):
        mode, before, behind = 4, attn_mask[0], attn_mask[1]
        if dropout_p > 0:
            hidden = _outside(q, k, before, behind)
    elif attn_mask is not None:
        mask = _in_four_by_ones(attn_mask)
        if mask.dtype == BOOL:
            hidden = ops.LogicalNot()(mask)
            mode, behind = 0, 0 if is_causal else behind
        else:
            shift = ops.cast(mask, query.dtype)
    if dropout_p > 0:
        out = _written_out(q, k, v, shift, hidden, factor, is_causal, dropout_p)
    else:
        score = ops.FlashAttentionScore(heads, 1.0, factor, before, behind, 0, "BNSD", mode)
        _, _, _, out = score(q, k, v, shift, None, None, hidden, None)
    shape = (*batch, heads, query.shape[-2], value.shape[-1])
    return out if out.shape == shape else ops.Reshape()(out, shape)


def _in_four(x: Any) -> Any:
    """All dimensions ahead of the heads made one."""
    if len(x.shape) == 4:
        return x
    count = 1
    for n in x.shape[:-3]:
        count = count * n
    return ops.Reshape()(x, (count, *x.shape[-3:]))


def _in_four_by_ones(mask: Any) -> Any:
    """With dimensions of size 1 in front."""
    if len(mask.shape) == 4:
        return mask
    return ops.Reshape()(mask, (1,) * (4 - len(mask.shape)) + mask.shape)


def _outside(query: Any, key: Any, before: Any, behind: Any) -> Any:
    """Return a Bool [queries, keys]: the keys outside of the band around each query's own place."""
    queries, keys = ops.arange(0, query.shape[2], 1), ops.arange(0, key.shape[2], 1)
    apart = ops.ExpandDims()(keys, 0) - ops.ExpandDims()(queries, 1)
    return ops.LogicalOr()(ops.Less()(apart, -before), ops.Greater()(apart, behind))


def _written_out(
    query: Any, key: Any, value: Any, shift: Any, hidden: Any, factor: Any, is_causal: Any, dropout_p: Any
) -> Any:
    """Return attention with dropped weights as separate operators, which the compiler fuses into one again.

    A query that sees no key gives zeros. Its scores are not masked, so that neither its softmax nor a gradient is NaN,
    and its result is replaced. (A causal mask hides no row.)
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = ops.repeat_interleave(key, groups, 1)
        value = ops.repeat_interleave(value, groups, 1)
    scores = ops.BatchMatMul(False, True)(query, key) * factor
    is_masked = shift is not None or hidden is not None
    if is_causal:
        later = ops.Equal()(ops.tril(ops.ones((query.shape[2], key.shape[2]), query.dtype)), 0.0)
        hidden = later if hidden is None else ops.LogicalOr()(hidden, later)
    unseen = hidden
    if shift is not None:  # a row may be hidden by the addend and the rest together
        infinite = ops.Equal()(shift, -math.inf)
        unseen = infinite if hidden is None else ops.LogicalOr()(hidden, infinite)
    rows = ops.ReduceAll(True)(unseen, -1) if is_masked else None
    if shift is not None:
        scores = scores + ops.masked_fill(shift, rows, ops.cast(0.0, shift.dtype))
    if hidden is not None:
        masked = hidden if rows is None else ops.LogicalAnd()(hidden, ops.LogicalNot()(rows))
        scores = ops.masked_fill(scores, masked, ops.cast(-math.inf, scores.dtype))
    wide = ops.cast(scores, FLOAT32) if query.dtype in HALVES else scores  # as attention in one operator adds up
    weights = ops.dropout(ops.cast(ops.Softmax(-1)(wide), query.dtype), dropout_p, True)
    out = ops.BatchMatMul()(weights, value)
    return out if rows is None else ops.masked_fill(out, rows, ops.cast(0.0, out.dtype))


def with_statistics(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any
) -> Any:
    """(the result, and in the place of what only PyTorch's own gradient reads: nothing)."""
    found = attention(query, key, value, attn_mask, dropout_p, is_causal, scale, True)
    return (found,) + (None,) * 8


def with_known_mask(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an attention without a mask that hides nothing, or only what comes later."""
    name = "attn_mask" if "attn_mask" in given else "attn_bias"
    mask = given.get(name)
    seen = allows(mask) if isinstance(mask, KnownTensor) and not given.get("is_causal") else None
    if seen is None:
        return given
    if seen.all():
        return given | {name: None}
    band = band_of(seen, *mask.shape[-2:])
    if band is not None:
        causal = band[1] == 0 and band[0] == mask.shape[-1] - 1
        return given | ({name: None, "is_causal": True} if causal else {name: band})
    return given | {name: KnownTensor(seen, seen.shape, BOOL)}


ATTENTION = (
    row("scaled_dot_product_attention.default",
        "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False", attention,
        known=with_known_mask),
    row("_scaled_dot_product_flash_attention_for_cpu.default",
        "query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None",
        lambda query, key, value, dropout_p, is_causal, attn_mask, scale: with_statistics(
            query, key, value, attn_mask, dropout_p, is_causal, scale), known=with_known_mask),
    row("_scaled_dot_product_flash_attention.default",
        "query, key, value, dropout_p=0.0, is_causal=False, -return_debug_mask=False, scale=None",
        lambda query, key, value, dropout_p, is_causal, scale: with_statistics(
            query, key, value, None, dropout_p, is_causal, scale)),
    row("_scaled_dot_product_efficient_attention.default",
        "query, key, value, attn_bias, -compute_log_sumexp, dropout_p=0.0, is_causal=False, scale=None",
        lambda query, key, value, attn_bias, dropout_p, is_causal, scale: with_statistics(
            query, key, value, attn_bias, dropout_p, is_causal, scale), known=with_known_mask),
    row("_scaled_dot_product_cudnn_attention.default",
        "query, key, value, attn_bias, -compute_log_sumexp, dropout_p=0.0, is_causal=False, -return_debug_mask=False, "
        "scale=None",
        lambda query, key, value, attn_bias, dropout_p, is_causal, scale: with_statistics(
            query, key, value, attn_bias, dropout_p, is_causal, scale), known=with_known_mask),
)  # fmt: skip
"""Kinds of attention."""
