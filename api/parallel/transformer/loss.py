"""This module has the loss of a language model."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell import Cell
from mspc.api.parallel.transformer.config import OpParallelConfig, checked_config, default_dpmp_config
from mspc.ir.types import FLOAT32


class CrossEntropyLoss(Cell):
    """The mean of -log softmax(logits)[label] over the places where input_mask is 1.

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
