"""This module has linear layers, norms, embeddings and feed-forward networks that are sharded."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.common.parameter import Parameter
from mspc.api.errors import ApiValueError
from mspc.api.nn.activation import get_activation
from mspc.api.nn.basic import Dropout
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import flag, number, parameter, positive
from mspc.api.parallel.transformer.config import (
    EmbeddingOpParallelConfig,
    OpParallelConfig,
    checked_config,
    default_dpmp_config,
    default_embedding_parallel_config,
    divides,
)
from mspc.ir.types import FLOAT16, FLOAT32


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
        """Say how x is sharded, as `((2, 1, 1),)`, and return the cell."""
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
        """Say how the operands of the product, of the bias and of the activation are sharded, and return the cell."""
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
    """Two linear layers with an activation between them, and dropout behind; only one expert, so that
    expert_group_size is not read."""

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
