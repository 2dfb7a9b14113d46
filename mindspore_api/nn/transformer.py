"""Multi-head attention and transformer layers."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

from mspc.ir.types import BOOL, FLOAT32, UINT8
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.initializers import HeUniform, Uniform, XavierNormal, XavierUniform
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.activation import get_activation
from mspc.mindspore_api.nn.basic import Dense, Dropout, LayerNorm
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import MOST_CELLS, flag, number, parameter, positive
from mspc.mindspore_api.nn.container import CellList


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


class _Layer(Cell):
    """Base of encoder and decoder layers: self-attention and two linear layers; parameters are in MindSpore's order."""

    looks: ClassVar[bool] = False
    """Whether it attends to the encoder's output, too."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = "relu",
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.norm_first = flag(name, "norm_first", norm_first)
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, dtype=dtype)
        if self.looks:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, dtype=dtype)
        self.dense1 = Dense(d_model, positive(name, "dim_feedforward", dim_feedforward), dtype=dtype)
        self.dropout = Dropout(p=dropout)
        self.dense2 = Dense(dim_feedforward, d_model, dtype=dtype)
        self.norm1 = LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype)
        self.norm2 = LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(p=dropout), Dropout(p=dropout)
        self.activation = _activation(activation)
        if not callable(self.activation):
            raise ApiTypeError(f"{name}: activation must be a name, a Cell or a function, not {activation!r}")
        if self.looks:
            self.norm3 = LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype)
            self.dropout3 = Dropout(p=dropout)

    def attend(self, x: Any, mask: Any, padding: Any) -> Any:
        return self.dropout1(self.self_attn(x, x, x, padding, False, mask)[0])

    def forward(self, x: Any) -> Any:
        return self.dense2(self.dropout(self.activation(self.dense1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention of the source and a feed-forward network, each added to its input and normalised after that, or
    before with norm_first.

    activation: a name, a Cell or a function; "gelu" is exact, as `ops.gelu`. Without masks nothing is hidden; True
    hides.
    """

    def construct(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
        if self.norm_first:
            x = src + self.attend(self.norm1(src), src_mask, src_key_padding_mask)
            return x + self.dropout2(self.forward(self.norm2(x)))
        x = self.norm1(src + self.attend(src, src_mask, src_key_padding_mask))
        return self.norm2(x + self.dropout2(self.forward(x)))


class TransformerDecoderLayer(_Layer):
    """Attention of the target to itself and to the encoder's output, and a feed-forward network; see
    `TransformerEncoderLayer`."""

    looks = True

    def construct(
        self, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
    ) -> Any:  # fmt: skip
        if self.norm_first:
            x = tgt + self.attend(self.norm1(tgt), tgt_mask, tgt_key_padding_mask)
            x = x + self.look(self.norm2(x), memory, memory_mask, memory_key_padding_mask)
            return x + self.dropout3(self.forward(self.norm3(x)))
        x = self.norm1(tgt + self.attend(tgt, tgt_mask, tgt_key_padding_mask))
        x = self.norm2(x + self.look(x, memory, memory_mask, memory_key_padding_mask))
        return self.norm3(x + self.dropout3(self.forward(x)))

    def look(self, x: Any, memory: Any, mask: Any, padding: Any) -> Any:
        return self.dropout2(self.multihead_attn(x, memory, memory, padding, False, mask)[0])


class TransformerEncoder(Cell):
    """`num_layers` copies of a layer, followed by a norm if one is given."""

    def __init__(self, encoder_layer: Cell, num_layers: int, norm: Cell | None = None) -> None:
        super().__init__()
        self.layers = _copies("TransformerEncoder", encoder_layer, num_layers)
        self.norm = norm

    def construct(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
        for layer in self.layers:
            src = layer(src, src_mask, src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Cell):
    """`num_layers` copies of a layer, followed by a norm if one is given."""

    def __init__(self, decoder_layer: Cell, num_layers: int, norm: Cell | None = None) -> None:
        super().__init__()
        self.layers = _copies("TransformerDecoder", decoder_layer, num_layers)
        self.norm = norm

    def construct(
        self, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
    ) -> Any:  # fmt: skip
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Cell):
    """An encoder of the source and a decoder of the target, which attends to the encoder's output.

    custom_encoder, custom_decoder: replace those made from the other arguments.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = "relu", custom_encoder: Any = None,
        custom_decoder: Any = None, layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
        dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        given = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, dtype)
        if custom_encoder is None:
            norm = LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype)
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*given), num_encoder_layers, norm)
        if custom_decoder is None:
            norm = LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype)
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*given), num_decoder_layers, norm)
        self.encoder, self.decoder = custom_encoder, custom_decoder

    def construct(
        self, src: Any, tgt: Any, src_mask: Any = None, tgt_mask: Any = None, memory_mask: Any = None,
        src_key_padding_mask: Any = None, tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None,
    ) -> Any:  # fmt: skip
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)


def _activation(given: Any) -> Any:
    if given == "gelu":
        return ops.gelu
    return get_activation(given) if isinstance(given, str) else given


def _copies(name: str, layer: Any, count: Any) -> CellList:
    if not isinstance(layer, Cell):
        raise ApiTypeError(f"{name}: the layer must be a Cell, not {type(layer).__name__}")
    return CellList([copy.deepcopy(layer) for _ in range(positive(name, "num_layers", count, MOST_CELLS))])
