"""Makes one operator of attention that is written out, as `fuse_attention` does, where heads have many scores: on CPUs.

Few scores stay in a core's cache when written out, and the operator takes head after head there. The batch and the
number of heads do not count, so that a graph of a rank's rows and one of the global batch have the same operators.
"""

from __future__ import annotations

from typing import ClassVar

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.fusion.causal_masks import forget_causal_masks
from mspc.passes.fusion.fuse_attention import FuseAttention, may_be_attention
from mspc.passes.fusion.masked_rows import forget_rows

LEAST = 1 << 12
"""Scores of a head from which an attention is fused: those of some 64 queries and keys."""


@dataclass(frozen=True)
class FuseLargeAttention(FuseAttention):
    """Replace products around a softmax of long rows by FlashAttentionScore."""

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
