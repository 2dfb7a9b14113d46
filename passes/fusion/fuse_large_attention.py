"""Makes one operator of attention that is written out, as `fuse_attention` does, where its scores are many: on CPUs.

What a graph with few scores gains there is less than what an operator costs that takes head after head.
"""

from __future__ import annotations

from typing import ClassVar

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.fusion.causal_masks import forget_causal_masks
from mspc.passes.fusion.fuse_attention import FuseAttention, may_be_attention
from mspc.passes.fusion.masked_rows import forget_rows

LEAST = 1 << 18
"""Scores of an attention, on all ranks, from which it is fused: what is made of them does not stay in caches."""


@dataclass(frozen=True)
class FuseLargeAttention(FuseAttention):
    """Replace products around a large softmax by FlashAttentionScore."""

    least: ClassVar[int] = LEAST

    def run(self, graph: Graph) -> bool:
        if has_many_scores(graph):
            return super().run(graph)
        forget_causal_masks(graph)
        forget_rows(graph)
        return False


def has_many_scores(graph: Graph) -> bool:
    """Whether a graph may have an attention that is fused."""
    return any(may_be_attention(node, LEAST) for node in graph.nodes)
