"""Attention, in the spelling of large language models."""

from __future__ import annotations

from ..compatible import F, P, get_parallel_mode, nn


class Base(nn.Cell):
    def construct(self, x):
        return self.head(self.norm_of_everything(x))


class Attention(Base):
    def __init__(self, config: nn.ConfigOfThen):
        super().__init__()
        self.batch_matmul = P.BatchMatMul().shard(((1, 1, 1, 1), (1, 1, 1, 1)))
        self.flash = P.FlashAttentionScoreOfThen(head_num=8)  # lacks mindspore.ops.operations.FlashAttentionScoreOfThen
        self.softmax = P.Softmax().recompute()
        self.mode = get_parallel_mode()

    def head(self, x):
        return F.rotary_of_then(x)  # lacks mindspore.ops.rotary_of_then
