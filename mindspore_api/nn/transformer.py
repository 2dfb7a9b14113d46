"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import BOOL, FLOAT32, UINT8
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.initializers import HeUniform, Uniform, XavierNormal, XavierUniform
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.basic import Dense, Dropout
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import flag, number, parameter, positive


class MultiheadAttention(Cell):
    """Vaswani et al. 2017: softmax(q k^T / sqrt(head size) + masks) v for every head, then a linear layer.

    Called with query [length, batch, embed_dim], key [source, batch, kdim] and value [source, batch, vdim], the batch
    first with batch_first; without a batch all of them, the masks and the results lack that dimension. Masks:
    key_padding_mask [batch, source] and attn_mask [length, source] or [batch * heads, length, source]; True forbids,
    numbers are added. add_bias_kv appends a learnt key and value, add_zero_attn appends zeros; no mask applies to them.
    Returns the output and the weights [batch, length, source] (of each head without average_attn_weights, None without
    need_weights).

    The parameters have PyTorch's names.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, has_bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        name = "MultiheadAttention"
        self.embed_dim = positive(name, "embed_dim", embed_dim)
        self.num_heads = positive(name, "num_heads", num_heads)
        if embed_dim % num_heads:
            raise ApiValueError(f"{name}: num_heads {num_heads} does not divide embed_dim {embed_dim}")
        if not 0 <= number(name, "dropout", dropout) < 1:
            raise ApiValueError(f"{name}: dropout {dropout} must be at least 0 and below 1")
        self.batch_first = flag(name, "batch_first", batch_first)
        self.head_dim = embed_dim // num_heads
        sizes = (embed_dim, kdim or embed_dim, vdim or embed_dim)
        self.is_same = sizes == (embed_dim,) * 3
        if self.is_same:
            self.in_proj_weight = parameter(XavierUniform(), (3 * embed_dim, embed_dim), dtype, "in_proj_weight")
        else:
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
                parameter(XavierUniform(), (embed_dim, size), dtype, f"{kind}_proj_weight")
                for kind, size in zip("qkv", sizes, strict=True)
            )
        self.in_proj_bias = (
            parameter("zeros", (3 * embed_dim,), dtype, "in_proj_bias") if flag(name, "has_bias", has_bias) else None
        )
        bound = 1 / math.sqrt(embed_dim)
        self.out_proj = Dense(embed_dim, embed_dim, HeUniform(math.sqrt(5)), Uniform(bound), has_bias, dtype=dtype)
        self.bias_k = self.bias_v = None
        if flag(name, "add_bias_kv", add_bias_kv):
            self.bias_k, self.bias_v = (
                parameter(XavierNormal(), (1, 1, embed_dim), dtype, each) for each in ("bias_k", "bias_v")
            )
        self.add_zero_attn = flag(name, "add_zero_attn", add_zero_attn)
        self.dropout = Dropout(p=float(dropout))

    def construct(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True,
        attn_mask: Any = None, average_attn_weights: bool = True,
    ) -> Any:  # fmt: skip
        is_single = len(query.shape) == 2
        if is_single:
            query, key, value = [ops.expand_dims(each, 0) for each in (query, key, value)]
        elif not self.batch_first:
            query, key, value = [each.transpose(1, 0, 2) for each in (query, key, value)]
        batch, length, _ = query.shape
        weights = self.parts()
        biases = (None, None, None) if self.in_proj_bias is None else ops.Split(0, 3)(self.in_proj_bias)
        q = self.heads(query, weights[0], biases[0]) * (1.0 / math.sqrt(self.head_dim))
        k = self.extended(self.heads(key, weights[1], biases[1]), self.bias_k)
        v = self.extended(self.heads(value, weights[2], biases[2]), self.bias_v)
        scores = ops.BatchMatMul(transpose_b=True)(q, k)
        source, added = key.shape[1], k.shape[2] - key.shape[1]
        if attn_mask is not None:
            if len(attn_mask.shape) == 3:
                attn_mask = ops.reshape(attn_mask, (batch, self.num_heads, length, source))
            scores = self.masked(scores, attn_mask, added)
        if key_padding_mask is not None:
            scores = self.masked(scores, ops.reshape(key_padding_mask, (batch, 1, 1, source)), added)
        shares = self.dropout(ops.softmax(scores, -1))
        mixed = ops.BatchMatMul()(shares, v).transpose(0, 2, 1, 3)
        out = self.out_proj(ops.reshape(mixed, (batch, length, self.embed_dim)))
        if average_attn_weights:
            shares = ops.reduce_mean(shares, 1)
        if is_single:
            out, shares = ops.squeeze(out, 0), ops.squeeze(shares, 0)
        elif not self.batch_first:
            out = out.transpose(1, 0, 2)
        return out, (shares if need_weights else None)

    def parts(self) -> Any:
        """Return the weights of query, key and value."""
        if self.is_same:
            return ops.Split(0, 3)(self.in_proj_weight)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def heads(self, x: Any, weight: Any, bias: Any) -> Any:
        """Return the projection of x [batch, length, size] as [batch, heads, length, head size]."""
        batch, length, size = x.shape
        out = ops.MatMul(transpose_b=True)(ops.reshape(x, (batch * length, size)), weight)
        if bias is not None:
            out = ops.BiasAdd()(out, bias)
        return ops.reshape(out, (batch, length, self.num_heads, self.head_dim)).transpose(0, 2, 1, 3)

    def extended(self, x: Any, bias: Any) -> Any:
        """Return keys or values [batch, heads, source, head size], followed by those that the layer adds."""
        batch = x.shape[0]
        if bias is not None:
            bias = ops.reshape(bias, (1, self.num_heads, 1, self.head_dim))
            x = ops.concat((x, ops.tile(bias, (batch, 1, 1, 1))), 2)
        if self.add_zero_attn:
            x = ops.concat((x, ops.zeros((batch, self.num_heads, 1, self.head_dim), x.dtype)), 2)
        return x

    def masked(self, scores: Any, mask: Any, added: int) -> Any:
        """Return the scores with a mask that does not cover the last `added` keys."""
        if mask.dtype == UINT8:
            mask = ops.cast(mask, BOOL)
        if added:
            beside = ops.zeros((*mask.shape[:-1], added), mask.dtype)
            mask = ops.concat((mask, beside), -1)
        if mask.dtype == BOOL:
            return ops.masked_fill(scores, mask, -float("inf"))
        return scores + ops.cast(mask, scores.dtype)
