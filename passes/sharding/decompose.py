"""Expands operators into those that can carry out their strategies, each by its own `Op.decompose`.

Input:  `%2 = RmsNorm(%x, %g) {in_strategy: ((2, 4), (4))}`, which normalises over a dimension that is to be sharded
Output: `%2 = ShardingConstraint(%x) {in_strategy: ((2, 4))}`, ..., `%5 = ReduceMean(%4)`, ..., whose sums are partial

Before gradients are taken, so that the backward operators are those of the simpler operators.
"""

from __future__ import annotations

from mspc.ir.diagnostics import raise_all
from mspc.ir.graph import Graph
from mspc.passes.base import Pass
from mspc.passes.lib.strategies import decompose_nodes
from mspc.passes.sharding.check_strategies import strategy_mistakes

SHARDED_MODES = ("semi_auto_parallel", "auto_parallel")


class Decompose(Pass):
    """Put several operators in the place of one if its strategy asks for it."""

    def run(self, graph: Graph) -> bool:
        is_sharded = graph.attrs.get("mode") in SHARDED_MODES or "strategies_for" in graph.attrs
        changed, mistakes = decompose_nodes(graph, is_sharded)
        if mistakes:
            raise_all(strategy_mistakes(graph, int(graph.attrs.get("ranks", 1))))
        return changed
