"""This module has layers of encoders and decoders, and stacks of them."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import flag, positive
from mspc.api.nn.container import CellList
from mspc.api.parallel.transformer.attention import MultiHeadAttention, refuse_past
from mspc.api.parallel.transformer.config import (
    MoEConfig,
    OpParallelConfig,
    TransformerOpParallelConfig,
    checked_config,
    default_dpmp_config,
    default_moe_config,
    default_transformer_config,
)
from mspc.api.parallel.transformer.layers import FeedForward, _LayerNorm
from mspc.ir.types import FLOAT16, FLOAT32


def _get_lambda_func(total_layer: int | None = None) -> Any:
    """What a stack does with every layer where it is told nothing else: it is computed again for its gradients where
    `parallel_config` says so. total_layer, by which MindSpore shares layers out to stages, is not read."""

    def place(layer: Any, layer_id: int, layers: int, offset: int, parallel_config: Any) -> None:
        if parallel_config.recompute.recompute:
            layer.recompute(**parallel_config.recompute.options)

    return place


class _Layer(Cell):
    """What layers of encoders and decoders share: attention to oneself, a feed-forward network, and their norms.

    Attributes for cells that are made of these, as in MindSpore: the sizes under their names, `dtype` of products, and
    `key_past` and `value_past`, which are None.
    """

    def __init__(
        self, batch_size: Any, length: int, hidden_size: int, ffn_hidden_size: int, num_heads: int,
        attention_dropout_rate: float, hidden_dropout_rate: float, post_layernorm_residual: bool,
        layernorm_compute_type: Any, softmax_compute_type: Any, param_init_type: Any, hidden_act: Any, use_past: bool,
        moe_config: Any, parallel_config: Any, compute_dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        refuse_past(name, use_past)
        if not isinstance(moe_config, MoEConfig):
            raise ApiTypeError(f"{name}: moe_config must be a MoEConfig, not {type(moe_config).__name__}")
        config = checked_config(name, parallel_config, OpParallelConfig)
        dp = config.data_parallel
        self.post_layernorm_residual = flag(name, "post_layernorm_residual", post_layernorm_residual)
        self.norm_dtype, self.dtype = layernorm_compute_type, compute_dtype
        self.batch_size, self.hidden_size, self.num_heads = batch_size, hidden_size, num_heads
        self.use_past, self.key_past, self.value_past = False, None, None
        self.layernorm1 = _LayerNorm((hidden_size,)).shard(((dp, 1, 1),))
        self.layernorm2 = _LayerNorm((hidden_size,)).shard(((dp, 1, 1),))
        self.attention = MultiHeadAttention(
            batch_size, length, length, hidden_size, num_heads, hidden_dropout_rate, attention_dropout_rate,
            compute_dtype, softmax_compute_type, param_init_type, False, config,
        )  # fmt: skip
        self.output = FeedForward(
            hidden_size, ffn_hidden_size, hidden_dropout_rate, hidden_act, 1, None, param_init_type, config,
            compute_dtype,
        )  # fmt: skip
        self.add = ops.Add().shard(((dp, 1, 1), (dp, 1, 1)))

    def normal(self, norm: Any, x: Any) -> Any:
        return ops.cast(norm(ops.cast(x, self.norm_dtype)), x.dtype)

    def attend(self, x: Any, mask: Any) -> Any:
        """(x with what it sees of itself, what the next norm reads, the keys and values)."""
        read = self.normal(self.layernorm1, x)
        seen, present = self.attention(read, read, read, mask)
        return self.add(read if self.post_layernorm_residual else x, seen), present

    def feed_forward(self, x: Any) -> Any:
        read = self.normal(self.layernorm2, x)
        return self.add(read if self.post_layernorm_residual else x, self.output(read))


class TransformerEncoderLayer(_Layer):
    """Attention of x [batch, seq_length, hidden_size] to itself and a feed-forward network, each behind a norm and
    added to what the norm read, or with post_layernorm_residual to what it gave.

    Called with input_mask [batch, seq_length, seq_length], 1 where one may look. Returns the output and the keys and
    values. compute_dtype, which MindSpore fixes at Float16, is the element type of products. init_reset and
    batch_valid_length belong to use_past, which is refused.
    """

    def __init__(
        self, batch_size: Any, hidden_size: int, ffn_hidden_size: int, num_heads: int, seq_length: int,
        attention_dropout_rate: float = 0.1, hidden_dropout_rate: float = 0.1, post_layernorm_residual: bool = False,
        layernorm_compute_type: Any = FLOAT32, softmax_compute_type: Any = FLOAT32, param_init_type: Any = FLOAT32,
        hidden_act: Any = "gelu", use_past: bool = False, moe_config: Any = default_moe_config,
        parallel_config: Any = default_dpmp_config, compute_dtype: Any = FLOAT16,
    ) -> None:  # fmt: skip
        super().__init__(
            batch_size, seq_length, hidden_size, ffn_hidden_size, num_heads, attention_dropout_rate,
            hidden_dropout_rate, post_layernorm_residual, layernorm_compute_type, softmax_compute_type,
            param_init_type, hidden_act, use_past, moe_config, parallel_config, compute_dtype,
        )  # fmt: skip

    def construct(self, x: Any, input_mask: Any = None, init_reset: Any = True, batch_valid_length: Any = None) -> Any:
        x, present = self.attend(x, input_mask)
        return self.feed_forward(x), present


class TransformerDecoderLayer(_Layer):
    """A layer that also attends to what an encoder made; see `TransformerEncoderLayer`, also of init_reset and
    batch_valid_length."""

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, num_heads: int, batch_size: Any, src_seq_length: int,
        tgt_seq_length: int, attention_dropout_rate: float = 0.1, hidden_dropout_rate: float = 0.1,
        post_layernorm_residual: bool = False, use_past: bool = False, layernorm_compute_type: Any = FLOAT32,
        softmax_compute_type: Any = FLOAT32, param_init_type: Any = FLOAT32, hidden_act: Any = "gelu",
        moe_config: Any = default_moe_config, parallel_config: Any = default_dpmp_config, compute_dtype: Any = FLOAT16,
    ) -> None:  # fmt: skip
        super().__init__(
            batch_size, tgt_seq_length, hidden_size, ffn_hidden_size, num_heads, attention_dropout_rate,
            hidden_dropout_rate, post_layernorm_residual, layernorm_compute_type, softmax_compute_type,
            param_init_type, hidden_act, use_past, moe_config, parallel_config, compute_dtype,
        )  # fmt: skip
        config = checked_config("TransformerDecoderLayer", parallel_config, OpParallelConfig)
        self.cross_attention = MultiHeadAttention(
            batch_size, src_seq_length, tgt_seq_length, hidden_size, num_heads, hidden_dropout_rate,
            attention_dropout_rate, compute_dtype, softmax_compute_type, param_init_type, False, config,
        )  # fmt: skip
        self.cross_attention_layernorm = _LayerNorm((hidden_size,)).shard(((config.data_parallel, 1, 1),))

    def construct(
        self, hidden_stats: Any, decoder_mask: Any, encoder_output: Any = None, memory_mask: Any = None,
        init_reset: Any = True, batch_valid_length: Any = None,
    ) -> Any:  # fmt: skip
        x, present = self.attend(hidden_stats, decoder_mask)
        if encoder_output is not None:
            read = self.normal(self.cross_attention_layernorm, x)
            seen, of_source = self.cross_attention(read, encoder_output, encoder_output, memory_mask)
            x = self.add(read if self.post_layernorm_residual else x, seen)
            present = (*present, *of_source)
        return self.feed_forward(x), present


class _Stack(Cell):
    """Layers one behind another."""

    def stack(self, layers: list[Cell], lambda_func: Any, offset: int, config: Any) -> None:
        place = _get_lambda_func() if lambda_func is None else lambda_func
        for i, layer in enumerate(layers):
            place(layer, layer_id=i, layers=len(layers), offset=offset, parallel_config=config)
        self.blocks = CellList(layers)


class TransformerEncoder(_Stack):
    """`num_layers` layers; see `TransformerEncoderLayer`.

    lambda_func: called for every layer as `lambda_func(layer, layer_id=, layers=, offset=, parallel_config=)`, in the
    place of what `parallel_config` says of recomputation. init_reset and batch_valid_length are not read. Returns the
    output and a tuple with each layer's keys and values.
    """

    def __init__(
        self, batch_size: Any, num_layers: int, hidden_size: int, ffn_hidden_size: int, seq_length: int, num_heads: int,
        attention_dropout_rate: float = 0.1, hidden_dropout_rate: float = 0.1, hidden_act: Any = "gelu",
        post_layernorm_residual: bool = False, layernorm_compute_type: Any = FLOAT32,
        softmax_compute_type: Any = FLOAT32, param_init_type: Any = FLOAT32, lambda_func: Any = None, offset: int = 0,
        use_past: bool = False, moe_config: Any = default_moe_config,
        parallel_config: Any = default_transformer_config, compute_dtype: Any = FLOAT16,
    ) -> None:  # fmt: skip
        super().__init__()
        config = checked_config("TransformerEncoder", parallel_config, TransformerOpParallelConfig)
        layers: list[Cell] = [
            TransformerEncoderLayer(
                batch_size, hidden_size, ffn_hidden_size, num_heads, seq_length, attention_dropout_rate,
                hidden_dropout_rate, post_layernorm_residual, layernorm_compute_type, softmax_compute_type,
                param_init_type, hidden_act, use_past, moe_config, config.dp_mp_config, compute_dtype,
            )
            for _ in range(positive("TransformerEncoder", "num_layers", num_layers))
        ]  # fmt: skip
        self.stack(layers, lambda_func, offset, config)

    def construct(
        self, hidden_states: Any, attention_mask: Any, init_reset: Any = True, batch_valid_length: Any = None
    ) -> Any:
        presents = ()
        for block in self.blocks:
            hidden_states, present = block(hidden_states, attention_mask)
            presents = (*presents, present)
        return hidden_states, presents


class TransformerDecoder(_Stack):
    """`num_layers` layers; see `TransformerDecoderLayer` and `TransformerEncoder`, also of init_reset and
    batch_valid_length."""

    def __init__(
        self, num_layers: int, batch_size: Any, hidden_size: int, ffn_hidden_size: int, src_seq_length: int,
        tgt_seq_length: int, num_heads: int, attention_dropout_rate: float = 0.1, hidden_dropout_rate: float = 0.1,
        post_layernorm_residual: bool = False, layernorm_compute_type: Any = FLOAT32,
        softmax_compute_type: Any = FLOAT32, param_init_type: Any = FLOAT32, hidden_act: Any = "gelu",
        lambda_func: Any = None, use_past: bool = False, offset: int = 0, moe_config: Any = default_moe_config,
        parallel_config: Any = default_transformer_config, compute_dtype: Any = FLOAT16,
    ) -> None:  # fmt: skip
        super().__init__()
        config = checked_config("TransformerDecoder", parallel_config, TransformerOpParallelConfig)
        layers: list[Cell] = [
            TransformerDecoderLayer(
                hidden_size, ffn_hidden_size, num_heads, batch_size, src_seq_length, tgt_seq_length,
                attention_dropout_rate, hidden_dropout_rate, post_layernorm_residual, use_past, layernorm_compute_type,
                softmax_compute_type, param_init_type, hidden_act, moe_config, config.dp_mp_config, compute_dtype,
            )
            for _ in range(positive("TransformerDecoder", "num_layers", num_layers))
        ]  # fmt: skip
        self.stack(layers, lambda_func, offset, config)

    def construct(
        self, hidden_states: Any, attention_mask: Any, encoder_output: Any = None, memory_mask: Any = None,
        init_reset: Any = True, batch_valid_length: Any = None,
    ) -> Any:  # fmt: skip
        presents = ()
        for block in self.blocks:
            hidden_states, present = block(hidden_states, attention_mask, encoder_output, memory_mask)
            presents = (*presents, present)
        return hidden_states, presents


class Transformer(Cell):
    """An encoder of `encoder_layers` layers and a decoder of `decoder_layers`; either may have none.

    Returns (output, the encoder's keys and values, the decoder's), None in the place of what is not there. init_reset
    and batch_valid_length are not read.
    """

    def __init__(
        self, hidden_size: int, batch_size: Any, ffn_hidden_size: int, src_seq_length: int, tgt_seq_length: int,
        encoder_layers: int = 3, decoder_layers: int = 3, num_heads: int = 2, attention_dropout_rate: float = 0.1,
        hidden_dropout_rate: float = 0.1, hidden_act: Any = "gelu", post_layernorm_residual: bool = False,
        layernorm_compute_type: Any = FLOAT32, softmax_compute_type: Any = FLOAT32, param_init_type: Any = FLOAT32,
        lambda_func: Any = None, use_past: bool = False, moe_config: Any = default_moe_config,
        parallel_config: Any = default_transformer_config, compute_dtype: Any = FLOAT16,
    ) -> None:  # fmt: skip
        super().__init__()
        given = {
            "attention_dropout_rate": attention_dropout_rate, "hidden_dropout_rate": hidden_dropout_rate,
            "hidden_act": hidden_act, "post_layernorm_residual": post_layernorm_residual,
            "layernorm_compute_type": layernorm_compute_type, "softmax_compute_type": softmax_compute_type,
            "param_init_type": param_init_type, "lambda_func": lambda_func, "use_past": use_past,
            "moe_config": moe_config, "parallel_config": parallel_config, "compute_dtype": compute_dtype,
        }  # fmt: skip
        self.encoder: Cell | None = None
        self.decoder: Cell | None = None
        if encoder_layers:
            self.encoder = TransformerEncoder(
                batch_size, encoder_layers, hidden_size, ffn_hidden_size, src_seq_length, num_heads, **given
            )
        if decoder_layers:
            self.decoder = TransformerDecoder(
                decoder_layers, batch_size, hidden_size, ffn_hidden_size, src_seq_length, tgt_seq_length, num_heads,
                offset=encoder_layers, **given,
            )  # fmt: skip

    def construct(
        self, encoder_inputs: Any, encoder_masks: Any, decoder_inputs: Any = None, decoder_masks: Any = None,
        memory_mask: Any = None, init_reset: Any = True, batch_valid_length: Any = None,
    ) -> Any:  # fmt: skip
        output, encoded, of_encoder, of_decoder = None, None, None, None
        if self.encoder is not None:
            encoded, of_encoder = self.encoder(encoder_inputs, encoder_masks)
            output = encoded
        if self.decoder is not None:
            output, of_decoder = self.decoder(decoder_inputs, decoder_masks, encoded, memory_mask)
        return output, of_encoder, of_decoder
