"""The Transformer of Vaswani et al. 2017, in cells."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.nn.activation import get_activation
from mspc.api.nn.attention import MultiheadAttention
from mspc.api.nn.basic import Dense, Dropout, LayerNorm
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import flag, positive
from mspc.api.nn.container import CellList
from mspc.ir.types import FLOAT32


class _Layer(Cell):
    """What layers of encoder and decoder share: attention to oneself and two linear layers; parameters are in
    MindSpore's order."""

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

    def attend(self, x: Any, mask: Any, padding: Any) -> Any:
        return self.dropout1(self.self_attn(x, x, x, padding, False, mask)[0])

    def forward(self, x: Any) -> Any:
        return self.dense2(self.dropout(self.activation(self.dense1(x))))


class TransformerEncoderLayer(_Layer):
    """Attention of the source to itself and a feed-forward network, each added to its input and normalised behind it,
    or before it with norm_first.

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

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = "relu",
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first,
                         dtype)  # fmt: skip
        self.norm3 = LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype)
        self.dropout3 = Dropout(p=dropout)

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
    """`num_layers` copies of a layer, and a norm behind them if one is given."""

    def __init__(self, encoder_layer: Cell, num_layers: int, norm: Cell | None = None) -> None:
        super().__init__()
        self.layers = _copies("TransformerEncoder", encoder_layer, num_layers)
        self.norm = norm

    def construct(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
        for layer in self.layers:
            src = layer(src, src_mask, src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Cell):
    """`num_layers` copies of a layer, and a norm behind them if one is given."""

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
    """An encoder of the source and a decoder of the target, which attends to what the encoder makes of the source.

    custom_encoder, custom_decoder: stand for those that are made of the other arguments.
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
    return CellList([copy.deepcopy(layer) for _ in range(positive(name, "num_layers", count))])
