"""These functions of networks are layers, losses and normalisation."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.loss_arguments import check_number


def dense(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias for rows of any number of dimensions, weight [out, in]."""
    sizes = input.shape
    rows = input if len(sizes) == 2 else ops.Reshape()(input, (-1, sizes[-1]))
    out = ops.MatMul(transpose_b=True)(rows, weight)
    if bias is not None:
        out = ops.BiasAdd()(out, bias)
    return out if len(sizes) == 2 else ops.Reshape()(out, (*sizes[:-1], weight.shape[0]))


def flash_attention_score(
    query: Any, key: Any, value: Any, head_num: int, real_shift: Any = None, drop_mask: Any = None,
    padding_mask: Any = None, attn_mask: Any = None, prefix: Any = None, actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None, keep_prob: float = 1.0, scalar_value: float = 1.0, pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647, inner_precise: int = 0, input_layout: str = "BSH", sparse_mode: int = 0,
) -> Any:  # fmt: skip
    """softmax(scalar_value * query @ key^T + real_shift) @ value for every head; see FlashAttentionScore."""
    score = ops.FlashAttentionScore(
        head_num, keep_prob, scalar_value, pre_tokens, next_tokens, inner_precise, input_layout, sparse_mode
    )
    _, _, _, out = score(
        query, key, value, real_shift, drop_mask, padding_mask, attn_mask, prefix, actual_seq_qlen, actual_seq_kvlen
    )
    return out


def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """The input normalised over its last dimensions, those of normalized_shape, times `weight`, plus `bias`."""
    axis = len(input.shape) - len(normalized_shape)
    weight = ops.ones(input.shape[axis:], input.dtype) if weight is None else weight
    bias = ops.zeros(input.shape[axis:], input.dtype) if bias is None else bias
    out, _, _ = ops.LayerNorm(axis, axis, eps)(input, weight, bias)
    return out


def dropout(input: Any, p: float = 0.5, training: bool = True, seed: Any = None) -> Any:
    """Elements set to 0 with probability p, the others divided by 1 - p.

    Every call draws numbers of its own; calls with the same `seed` draw the same.
    """
    check_number("dropout", "p", p, 0.0, 1.0)
    if not training or p == 0.0:
        return input
    out, _ = ops.Dropout(1.0 - p, 0 if seed is None else seed)(input)
    return out
