"""This module has attention whose heads are sharded over ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.api import ops
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiValueError
from mspc.api.nn.basic import Dropout
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import number, positive
from mspc.api.parallel.transformer.config import OpParallelConfig, checked_config, default_dpmp_config, divides
from mspc.api.parallel.transformer.layers import _Linear
from mspc.ir.types import FLOAT16, FLOAT32

_HIDDEN = -10000.0
"""What is added to scores that nobody may look at."""


class AttentionMask(Cell):
    """Who may look at whom, [batch, seq_length, seq_length]: 1 where both places are words, as input_mask
    [batch, seq_length] says, and the second stands not behind the first; 0 elsewhere."""

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
    """Attention of query_tensor [batch, tgt_seq_length, hidden_size] to key_tensor and value_tensor
    [batch, src_seq_length, hidden_size], by several heads, and a linear layer behind it.

    Called with attention_mask [batch, tgt_seq_length, src_seq_length], 1 where one may look, or None. Returns the
    output and the (key, value) of every head. batch_size is taken and not needed. use_past: only False, so that
    key_past, value_past and batch_valid_length are not read.
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
        """x [batch, length, hidden size] as [batch, heads, length, head size]."""
        batch, length, _ = x.shape
        return self.transpose(ops.reshape(x, (batch, length, self.num_heads, self.size_per_head)), (0, 2, 1, 3))


def refuse_past(name: str, use_past: Any) -> None:
    """Raises ValueError where a cell is to continue from what it has seen in earlier calls."""
    if use_past:
        raise ApiValueError(f"{name}: use_past must be False: inference word by word is not built")
