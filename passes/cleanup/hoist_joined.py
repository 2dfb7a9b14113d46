"""Moves the weights that passes for GPUs have joined in a loop before the loop.

Input:  `While` whose body has `%0 = Concat(%para_wq, %para_wk, %para_wv)`, which one product reads
Output: `%1 = Concat(%wq, %wk, %wv)` before `While`, which hands it in
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.passes.base import WHOLE, Pass
from mspc.passes.cleanup.hoist_invariants import hoist


class HoistJoined(Pass):
    """Run `hoist_invariants` on a rank's own graph, after the passes that join operands of matmuls."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        return any(node.regions for node in graph.nodes) and hoist(graph, is_local=True)
