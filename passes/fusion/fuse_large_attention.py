"""Fuse attention that is written out, as `fuse_attention` does, if heads have many scores: on CPUs.

Few scores stay in a core's cache when written out, and the operator takes head after head there. The batch and the
number of heads do not count, so that a graph of a rank's rows and one of the global batch have the same operators.
Fewer scores are fused if strategies shard the queries: ranks exchange slices of the sequence in one operator alone.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.passes.base import Pass
from mspc.passes.fusion.attention_scores import may_be_attention, may_shard_queries

MIN_SCORES = 1 << 12
"""Scores of a head from which an attention is fused: those of some 64 queries and keys."""


class FuseLargeAttention(Pass):
    """Replace products around a softmax of long rows by FlashAttentionScore."""

    def run(self, graph: Graph) -> bool:
        noted = any(parameter.kind == "constant" and parameter.attrs for parameter in graph.parameters)
        if not noted and not has_many_scores(graph):
            if not any(parameter.attrs for parameter in graph.parameters):
                return False
            from mspc.passes.fusion.attention_masks import forget_rows  # late: few networks have loops

            return forget_rows(graph)  # bounds of loop values, as `fuse_attention` does after it read the graph
        from mspc.passes.fusion.fuse_attention import fuse_written  # late: most networks on CPUs have no attention

        return fuse_written(graph, MIN_SCORES)


def has_many_scores(graph: Graph) -> bool:
    """Return whether a graph may have an attention that is fused."""
    return any(may_be_attention(node, MIN_SCORES) or may_shard_queries(node) for node in graph.nodes)
