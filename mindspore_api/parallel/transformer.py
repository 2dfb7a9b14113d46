"""`mindspore.parallel._transformer`: transformers sharded over rows of the batch and over heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT16, FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.activation import get_activation
from mspc.mindspore_api.nn.basic import Dropout
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import MAX_CELLS, flag, number, parameter, positive
from mspc.mindspore_api.nn.container import CellList
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe


class OpParallelConfig:
    """data_parallel: number of slices of the rows. model_parallel: number of slices of the heads and of the hidden
    values of a feed-forward network."""

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1) -> None:
        self.data_parallel = positive("OpParallelConfig", "data_parallel", data_parallel)
        self.model_parallel = positive("OpParallelConfig", "model_parallel", model_parallel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpParallelConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.data_parallel, self.model_parallel))


class EmbeddingOpParallelConfig(OpParallelConfig):
    """vocab_emb_dp: the table is replicated; otherwise its rows are sharded into model_parallel slices."""

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1, vocab_emb_dp: bool = True, **more: Any) -> None:
        super().__init__(data_parallel, model_parallel)
        unused("EmbeddingOpParallelConfig", more, {"use_seq_parallel": False, "select_recompute": False})
        self.vocab_emb_dp = flag("EmbeddingOpParallelConfig", "vocab_emb_dp", vocab_emb_dp)

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        return OpParallelConfig(self.data_parallel, self.model_parallel)

    __hash__ = OpParallelConfig.__hash__


class TransformerRecomputeConfig:
    """recompute: layers are recomputed for their gradients. The other options are those of `Cell.recompute`."""

    def __init__(
        self, recompute: bool = False, parallel_optimizer_comm_recompute: bool = False, mp_comm_recompute: bool = True,
        recompute_slice_activation: bool = False,
    ) -> None:  # fmt: skip
        name = "TransformerRecomputeConfig"
        self.recompute = flag(name, "recompute", recompute)
        self.parallel_optimizer_comm_recompute = flag(
            name, "parallel_optimizer_comm_recompute", parallel_optimizer_comm_recompute
        )
        self.mp_comm_recompute = flag(name, "mp_comm_recompute", mp_comm_recompute)
        self.recompute_slice_activation = flag(name, "recompute_slice_activation", recompute_slice_activation)

    @property
    def options(self) -> dict[str, bool]:
        """The options of a layer's `recompute`."""
        return {key: value for key, value in vars(self).items() if key != "recompute"}


class TransformerOpParallelConfig:
    """Sharding of a Transformer, for encoder and decoder alike.

    data_parallel, model_parallel, vocab_emb_dp: as in `EmbeddingOpParallelConfig`. recompute: whether layers are
    recomputed for their gradients, or a `TransformerRecomputeConfig`. The other arguments must have their defaults, or
    change nothing in the cells here, as a warning says; a script's own cells may read `use_seq_parallel`. Raise
    TypeError or ValueError if an argument is something else, or requests several experts.
    """

    def __init__(
        self, data_parallel: int = 1, model_parallel: int = 1, expert_parallel: int = 1, pipeline_stage: int = 1,
        micro_batch_num: int = 1, recompute: Any = False, optimizer_shard: bool = False,
        gradient_aggregation_group: int = 4, vocab_emb_dp: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        name = "TransformerOpParallelConfig"
        self.data_parallel = positive(name, "data_parallel", data_parallel)
        self.model_parallel = positive(name, "model_parallel", model_parallel)
        self.expert_parallel = positive(name, "expert_parallel", expert_parallel)
        self.pipeline_stage = positive(name, "pipeline_stage", pipeline_stage)
        if self.expert_parallel > 1:
            raise ApiValueError(f"{name}: expert_parallel must be 1: mixtures of experts are not supported yet")
        self.micro_batch_num = positive(name, "micro_batch_num", micro_batch_num)
        self.vocab_emb_dp = flag(name, "vocab_emb_dp", vocab_emb_dp)
        if isinstance(recompute, bool):
            recompute = TransformerRecomputeConfig(recompute)
        if not isinstance(recompute, TransformerRecomputeConfig):
            raise ApiTypeError(f"{name}: recompute must be a bool or a TransformerRecomputeConfig, not {recompute!r}")
        self.recompute = recompute
        self.optimizer_shard = optimizer_shard
        self.gradient_aggregation_group = gradient_aggregation_group
        given = {"optimizer_shard": optimizer_shard, "gradient_aggregation_group": gradient_aggregation_group}
        self.use_seq_parallel = more.get("use_seq_parallel", False)
        unused(name, given | more, {
            "optimizer_shard": False, "gradient_aggregation_group": 4, "use_seq_parallel": False,
            "select_recompute": False, "context_parallel": 1,
        })  # fmt: skip

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        """The part for layers."""
        return OpParallelConfig(self.data_parallel, self.model_parallel)

    @property
    def embedding_dp_mp_config(self) -> EmbeddingOpParallelConfig:
        """The part for the embedding."""
        return EmbeddingOpParallelConfig(self.data_parallel, self.model_parallel, self.vocab_emb_dp)

    moe_parallel_config = dp_mp_config


class MoEConfig:
    """Mixture of experts; only its default, one expert, is supported. Raise ValueError if expert_num is greater."""

    def __init__(
        self, expert_num: int = 1, capacity_factor: float = 1.1, aux_loss_factor: float = 0.05,
        num_experts_chosen: int = 1, **more: Any,
    ) -> None:  # fmt: skip
        self.expert_num = positive("MoEConfig", "expert_num", expert_num)
        if self.expert_num > 1:
            raise ApiValueError("MoEConfig: expert_num must be 1: mixtures of experts are not supported yet")
        self.capacity_factor, self.aux_loss_factor = capacity_factor, aux_loss_factor
        self.num_experts_chosen = num_experts_chosen
        unused("MoEConfig", more, {"expert_group_size": None, "group_wise_a2a": False, "comp_comm_parallel": False,
                                   "comp_comm_parallel_degree": 2, "enable_sdrop": False, "use_fused_ops_topkrouter":
                                   False, "router_type": "TopkRouterV1"})  # fmt: skip


def unused(name: str, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Warn about the arguments of `given` that change nothing. Raise TypeError if there is no such argument."""
    for key, value in given.items():
        if key not in defaults:
            raise ApiTypeError(f"{name} has no argument {key!r}")
        if value != defaults[key]:
            say_once(f"{name} {key}", f"{place_of_caller()}{name}({key}={value!r}) changes nothing here")


def checked_config(name: str, config: Any, kind: type) -> Any:
    """Return `config`, or the part of a TransformerOpParallelConfig of a kind. Raise TypeError if it is neither."""
    if isinstance(config, TransformerOpParallelConfig) and kind is not TransformerOpParallelConfig:
        config = config.embedding_dp_mp_config if kind is EmbeddingOpParallelConfig else config.dp_mp_config
    if not isinstance(config, kind):
        raise ApiTypeError(f"{name}: parallel_config must be of type {kind.__name__}, not {describe(config)}")
    return config


def divides(name: str, what: str, number: int, parts: int) -> None:
    """Raise ValueError if `number` is not divisible by `parts`."""
    if number % parts:
        raise ApiValueError(f"{name}: {what} {number} must be a multiple of model_parallel {parts}")


default_dpmp_config = OpParallelConfig()
default_embedding_parallel_config = EmbeddingOpParallelConfig()
default_moe_config = MoEConfig()
default_transformer_config = TransformerOpParallelConfig()


class _LayerNorm(Cell):
    """The last dimension with mean 0 and variance 1, times gamma, plus beta."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, param_init_type: Any = FLOAT32) -> None:
        super().__init__()
        shape = tuple(normalized_shape)
        if len(shape) != 1:
            raise ApiValueError(f"_LayerNorm: normalized_shape must be one number, not {shape}")
        self.gamma = parameter("ones", shape, param_init_type, "gamma")
        self.beta = parameter("zeros", shape, param_init_type, "beta")
        self.layer_norm = ops.LayerNorm(-1, -1, eps)

    def construct(self, x: Any) -> Any:
        out, _, _ = self.layer_norm(x, ops.cast(self.gamma, x.dtype), ops.cast(self.beta, x.dtype))
        return out

    def shard(self, strategy: Any, *_: Any, **__: Any) -> Any:
        """Set the strategy of x, as `((2, 1, 1),)`, and return the cell."""
        self.layer_norm.shard((*strategy, (1,), (1,)))
        return self


class _Linear(Cell):
    """x @ weight + bias, then the activation, computed in `compute_dtype`; the weight is [out_channels, in_channels],
    or [in_channels, out_channels] without transpose_b."""

    def __init__(
        self, in_channels: int, out_channels: int, weight_init: Any = "normal", bias_init: Any = "zeros",
        has_bias: bool = True, activation: Any = None, transpose_b: bool = True, param_init_type: Any = FLOAT32,
        compute_dtype: Any = FLOAT16,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_channels = positive("_Linear", "in_channels", in_channels)
        self.out_channels = positive("_Linear", "out_channels", out_channels)
        shape = (in_channels, out_channels)
        if flag("_Linear", "transpose_b", transpose_b):
            shape = (out_channels, in_channels)
        self.weight = parameter(weight_init, shape, param_init_type, "weight")
        self.matmul = ops.MatMul(transpose_b=transpose_b)
        self.bias: Parameter | None = None
        if flag("_Linear", "has_bias", has_bias):
            self.bias = parameter(bias_init, (out_channels,), param_init_type, "bias")
            self.bias_add = ops.Add()
        self.activation = get_activation(activation) if isinstance(activation, str) else activation
        self.dtype = compute_dtype

    def construct(self, x: Any) -> Any:
        shape = x.shape
        out = self.matmul(
            ops.cast(ops.reshape(x, (-1, self.in_channels)), self.dtype), ops.cast(self.weight, self.dtype)
        )
        if self.bias is not None:
            out = self.bias_add(out, ops.cast(self.bias, self.dtype))
        if self.activation is not None:
            out = self.activation(out)
        return ops.cast(ops.reshape(out, (*shape[:-1], self.out_channels)), x.dtype)

    def shard(
        self, strategy_matmul: Any, strategy_bias: Any = None, strategy_activation: Any = None, *_: Any, **__: Any
    ) -> Any:
        """Set the strategies of the operands of the matmul, of the bias and of the activation, and return the cell."""
        self.matmul.shard(strategy_matmul)
        if self.bias is not None:
            self.bias_add.shard(strategy_bias)
        if strategy_activation is not None and isinstance(self.activation, Cell):
            self.activation.shard(strategy_activation)
        return self


class VocabEmbedding(Cell):
    """Rows of a table [vocab_size, embedding_size] at the indices, and the table: a tuple of two."""

    def __init__(
        self, vocab_size: int, embedding_size: int, parallel_config: Any = default_embedding_parallel_config,
        param_init: Any = "normal",
    ) -> None:  # fmt: skip
        super().__init__()
        name = "VocabEmbedding"
        config = checked_config(name, parallel_config, EmbeddingOpParallelConfig)
        self.vocab_size = positive(name, "vocab_size", vocab_size)
        self.embedding_size = positive(name, "embedding_size", embedding_size)
        rows = 1 if config.vocab_emb_dp else config.model_parallel
        divides(name, "vocab_size", vocab_size, rows)
        self.embedding_table = parameter(param_init, (vocab_size, embedding_size), FLOAT32, "embedding_table")
        self.gather = ops.Gather().shard(((rows, 1), (config.data_parallel, 1)))

    def construct(self, input_ids: Any) -> Any:
        return self.gather(self.embedding_table, input_ids, 0), self.embedding_table.value()


class FeedForward(Cell):
    """Two linear layers with an activation between them, and dropout after them; only one expert, so that
    expert_group_size is ignored."""

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, dropout_rate: float, hidden_act: Any = "gelu",
        expert_num: int = 1, expert_group_size: Any = None, param_init_type: Any = FLOAT32,
        parallel_config: Any = default_dpmp_config, compute_dtype: Any = FLOAT16,
    ) -> None:  # fmt: skip
        super().__init__()
        name = "FeedForward"
        config = checked_config(name, parallel_config, OpParallelConfig)
        dp, mp = config.data_parallel, config.model_parallel
        if expert_num != 1:
            raise ApiValueError(f"{name}: expert_num must be 1: mixtures of experts are not supported yet")
        divides(name, "ffn_hidden_size", positive(name, "ffn_hidden_size", ffn_hidden_size), mp)
        divides(name, "hidden_size", positive(name, "hidden_size", hidden_size), mp)
        self.hidden_size, self.ffn_hidden_size = hidden_size, ffn_hidden_size
        common = {"transpose_b": False, "param_init_type": param_init_type, "compute_dtype": compute_dtype}
        self.mapping = _Linear(hidden_size, ffn_hidden_size, activation=hidden_act, **common)
        self.mapping.shard(((dp, 1), (1, mp)), ((dp, mp), (mp,)), ((dp, mp),))
        self.projection = _Linear(ffn_hidden_size, hidden_size, **common)
        self.projection.shard(((dp, mp), (mp, 1)), ((dp, 1), (1,)))
        self.dropout = Dropout(p=number(name, "dropout_rate", dropout_rate))

    def construct(self, x: Any) -> Any:
        return self.dropout(self.projection(self.mapping(x)))


class CrossEntropyLoss(Cell):
    """The mean of -log softmax(logits)[label] over the positions with input_mask 1.

    Called with logits [n, classes], which may be sharded along both, label [n] and input_mask [n].
    """

    def __init__(self, parallel_config: Any = default_dpmp_config) -> None:
        super().__init__()
        config = checked_config("CrossEntropyLoss", parallel_config, OpParallelConfig)
        dp, mp = config.data_parallel, config.model_parallel
        self.largest = ops.ReduceMax(True).shard(((dp, mp),))
        self.sub = ops.Sub().shard(((dp, mp), (dp, 1)))
        self.exp = ops.Exp().shard(((dp, mp),))
        self.sum_exp = ops.ReduceSum(True).shard(((dp, mp),))
        self.onehot = ops.OneHot().shard(((dp, mp), (), ()))
        self.chosen = ops.Mul().shard(((dp, mp), (dp, mp)))
        self.sum = ops.ReduceSum().shard(((dp, mp),))

    def construct(self, logits: Any, label: Any, input_mask: Any) -> Any:
        logits = ops.cast(logits, FLOAT32)
        label, shown = ops.reshape(label, (-1,)), ops.cast(ops.reshape(input_mask, (-1,)), FLOAT32)
        shifted = self.sub(logits, ops.stop_gradient(self.largest(logits, 1)))
        logarithms = self.sub(shifted, ops.log(self.sum_exp(self.exp(shifted), 1)))
        one, zero = ops.scalar_to_tensor(1.0, FLOAT32), ops.scalar_to_tensor(0.0, FLOAT32)
        losses = -self.sum(self.chosen(logarithms, self.onehot(label, logits.shape[1], one, zero)), 1)
        return ops.reduce_sum(losses * shown) / (ops.reduce_sum(shown) + 1e-5)


_HIDDEN = -10000.0
"""Number added to the scores of masked pairs."""


class AttentionMask(Cell):
    """Causal attention mask, [batch, seq_length, seq_length]: 1 if input_mask [batch, seq_length] is 1 at both
    positions, and the second position is not after the first; 0 elsewhere."""

    def __init__(self, seq_length: int, parallel_config: Any = default_dpmp_config) -> None:
        super().__init__()
        config = checked_config("AttentionMask", parallel_config, OpParallelConfig)
        self.seq_length = positive("AttentionMask", "seq_length", seq_length)
        self.multiply = ops.Mul().shard(((config.data_parallel, 1, 1), (config.data_parallel, 1, 1)))
        self.lower = Tensor(np.tril(np.ones((1, seq_length, seq_length), np.float32)))
        self.triangle = ops.Mul().shard(((config.data_parallel, 1, 1), (1, 1, 1)))

    def construct(self, input_mask: Any) -> Any:
        words = ops.cast(ops.not_equal(input_mask, 0), FLOAT32)
        batch, length = words.shape
        both = self.multiply(ops.reshape(words, (batch, length, 1)), ops.reshape(words, (batch, 1, length)))
        return self.triangle(both, self.lower)


class MultiHeadAttention(Cell):
    """Attention of query_tensor [batch, tgt_seq_length, hidden_size] to key_tensor and value_tensor [batch,
    src_seq_length, hidden_size], by several heads, followed by a linear layer.

    Called with attention_mask [batch, tgt_seq_length, src_seq_length], 1 for allowed pairs, or None. Returns the output
    and the (key, value) of every head. batch_size is accepted and not needed. use_past: only False, so that key_past,
    value_past and batch_valid_length are ignored.
    """

    def __init__(
        self, batch_size: Any, src_seq_length: int, tgt_seq_length: int, hidden_size: int, num_heads: int,
        hidden_dropout_rate: float = 0.1, attention_dropout_rate: float = 0.1, compute_dtype: Any = FLOAT16,
        softmax_compute_type: Any = FLOAT32, param_init_type: Any = FLOAT32, use_past: bool = False,
        parallel_config: Any = default_dpmp_config,
    ) -> None:  # fmt: skip
        super().__init__()
        name = "MultiHeadAttention"
        config = checked_config(name, parallel_config, OpParallelConfig)
        dp, mp = config.data_parallel, config.model_parallel
        refuse_past(name, use_past)
        self.hidden_size = positive(name, "hidden_size", hidden_size)
        self.num_heads = positive(name, "num_heads", num_heads)
        if hidden_size % num_heads:
            raise ApiValueError(f"{name}: hidden_size {hidden_size} must be a multiple of num_heads {num_heads}")
        divides(name, "num_heads", num_heads, mp)
        positive(name, "src_seq_length", src_seq_length)
        positive(name, "tgt_seq_length", tgt_seq_length)
        self.size_per_head = hidden_size // num_heads
        self.softmax_dtype = softmax_compute_type
        common = {"param_init_type": param_init_type, "compute_dtype": compute_dtype}
        across = ((dp, 1), (mp, 1)), ((dp, mp), (mp,))
        self.dense1 = _Linear(hidden_size, hidden_size, **common).shard(*across)
        self.dense2 = _Linear(hidden_size, hidden_size, **common).shard(*across)
        self.dense3 = _Linear(hidden_size, hidden_size, **common).shard(*across)
        self.projection = _Linear(hidden_size, hidden_size, transpose_b=False, **common)
        self.projection.shard(((dp, mp), (mp, 1)), ((dp, 1), (1,)))
        self.transpose = ops.Transpose().shard(((dp, 1, mp, 1),))
        self.merger = ops.Transpose().shard(((dp, mp, 1, 1),))
        self.scores = ops.BatchMatMul(transpose_b=True).shard(((dp, mp, 1, 1), (dp, mp, 1, 1)))
        self.mix = ops.BatchMatMul().shard(((dp, mp, 1, 1), (dp, mp, 1, 1)))
        self.add = ops.Add().shard(((dp, 1, 1, 1), (dp, mp, 1, 1)))
        self.softmax = ops.Softmax().shard(((dp, mp, 1, 1),))
        self.prob_dropout = Dropout(p=number(name, "attention_dropout_rate", attention_dropout_rate))
        self.dropout = Dropout(p=number(name, "hidden_dropout_rate", hidden_dropout_rate))

    def construct(
        self, query_tensor: Any, key_tensor: Any, value_tensor: Any, attention_mask: Any, key_past: Any = None,
        value_past: Any = None, batch_valid_length: Any = None,
    ) -> Any:  # fmt: skip
        query, key = self.heads(self.dense1(query_tensor)), self.heads(self.dense2(key_tensor))
        value = self.heads(self.dense3(value_tensor))
        scores = ops.cast(self.scores(query * (1.0 / math.sqrt(self.size_per_head)), key), self.softmax_dtype)
        if attention_mask is not None:
            shown = ops.cast(ops.expand_dims(attention_mask, 1), self.softmax_dtype)
            scores = self.add((1.0 - shown) * _HIDDEN, scores)
        shares = self.prob_dropout(ops.cast(self.softmax(scores), value.dtype))
        mixed = self.merger(self.mix(shares, value), (0, 2, 1, 3))
        batch, length = query_tensor.shape[0], query_tensor.shape[1]
        out = self.projection(ops.reshape(mixed, (batch, length, self.hidden_size)))
        return self.dropout(out), (key, value)

    def heads(self, x: Any) -> Any:
        """Return x [batch, length, hidden size] as [batch, heads, length, head size]."""
        batch, length, _ = x.shape
        return self.transpose(ops.reshape(x, (batch, length, self.num_heads, self.size_per_head)), (0, 2, 1, 3))


def refuse_past(name: str, use_past: Any) -> None:
    """Raise ValueError if a cell should continue from earlier calls."""
    if use_past:
        raise ApiValueError(f"{name}: use_past must be False: inference word by word is not built")


def _get_lambda_func(total_layer: int | None = None) -> Any:
    """Return the default function of a stack for every layer: the layer is recomputed for its gradients if
    `parallel_config` says so. total_layer, by which MindSpore distributes layers over stages, is ignored."""

    def place(layer: Any, layer_id: int, layers: int, offset: int, parallel_config: Any) -> None:
        if parallel_config.recompute.recompute:
            layer.recompute(**parallel_config.recompute.options)

    return place


class TransformerEncoderLayer(Cell):
    """Self-attention of x [batch, seq_length, hidden_size] and a feed-forward network. A norm precedes each; the result
    is added to the input of the norm, or with post_layernorm_residual to its output.

    Called with input_mask [batch, seq_length, seq_length], 1 for allowed pairs. Returns the output and the keys and
    values. compute_dtype, which MindSpore fixes at Float16, is the element type of matmuls. init_reset and
    batch_valid_length belong to use_past, which is refused.

    Attributes for subclasses, as in MindSpore: the sizes under their names, `dtype` of matmuls, and `key_past` and
    `value_past`, which are None.
    """

    def __init__(
        self, batch_size: Any, hidden_size: int, ffn_hidden_size: int, num_heads: int, seq_length: int,
        attention_dropout_rate: float = 0.1, hidden_dropout_rate: float = 0.1, post_layernorm_residual: bool = False,
        layernorm_compute_type: Any = FLOAT32, softmax_compute_type: Any = FLOAT32, param_init_type: Any = FLOAT32,
        hidden_act: Any = "gelu", use_past: bool = False, moe_config: Any = default_moe_config,
        parallel_config: Any = default_dpmp_config, compute_dtype: Any = FLOAT16,
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
            batch_size, seq_length, seq_length, hidden_size, num_heads, hidden_dropout_rate, attention_dropout_rate,
            compute_dtype, softmax_compute_type, param_init_type, False, config,
        )  # fmt: skip
        self.output = FeedForward(
            hidden_size, ffn_hidden_size, hidden_dropout_rate, hidden_act, 1, None, param_init_type, config,
            compute_dtype,
        )  # fmt: skip
        self.add = ops.Add().shard(((dp, 1, 1), (dp, 1, 1)))

    def construct(self, x: Any, input_mask: Any = None, init_reset: Any = True, batch_valid_length: Any = None) -> Any:
        read = self.normal(self.layernorm1, x)
        seen, present = self.attention(read, read, read, input_mask)
        x = self.add(read if self.post_layernorm_residual else x, seen)
        read = self.normal(self.layernorm2, x)
        return self.add(read if self.post_layernorm_residual else x, self.output(read)), present

    def normal(self, norm: Any, x: Any) -> Any:
        return ops.cast(norm(ops.cast(x, self.norm_dtype)), x.dtype)


class TransformerEncoder(Cell):
    """`num_layers` layers; see `TransformerEncoderLayer`.

    lambda_func: called for every layer as `lambda_func(layer, layer_id=, layers=, offset=, parallel_config=)`, in place
    of the recomputation of `parallel_config`. init_reset and batch_valid_length are ignored. Returns the output and a
    tuple with each layer's keys and values.
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
            for _ in range(positive("TransformerEncoder", "num_layers", num_layers, MAX_CELLS))
        ]  # fmt: skip
        place = _get_lambda_func() if lambda_func is None else lambda_func
        for i, layer in enumerate(layers):
            place(layer, layer_id=i, layers=len(layers), offset=offset, parallel_config=config)
        self.blocks = CellList(layers)

    def construct(
        self, hidden_states: Any, attention_mask: Any, init_reset: Any = True, batch_valid_length: Any = None
    ) -> Any:
        presents = ()
        for block in self.blocks:
            hidden_states, present = block(hidden_states, attention_mask)
            presents = (*presents, present)
        return hidden_states, presents
