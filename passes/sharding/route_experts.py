"""Brings the rows of grouped products to the ranks that have their experts, and back.

Input:  `%4 = Gather(%x, %order)`, `%5 = GroupedProduct(%4, %w1, %ends) {in_strategy: ((2, 1), (4, 1, 1), (1))}`,
        `%6 = ReLU(%5)`, `%7 = GroupedProduct(%6, %w2, %ends) {in_strategy: ...}`, `%8 = Gather(%7, %back)`
Output: `%3 = ExpertPlaces(%ends, %order)`, `%4 = TakeRows(%x, %3[0])`, `%5 = ExpertProduct(%4, %w1, %3[3])`,
        `%6 = ReLU(%5)`, `%7 = ExpertProduct(%6, %w2, %3[3])`, `%8 = TakeRows(%7, Gather(%3[2], %back))`

Rows in the order of their experts cannot be sharded by experts evenly: how many each has is known at run time. In
blocks of equal size, one for the experts of each rank, they can. Operators that work row by row in between work on the
blocks. Lookups of rows, such as the one that restores their old order, look up the blocks, so that every row travels
once each way (`passes/communication/exchange_rows.py`). It runs before gradients, which then are those of the operators
of blocks.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ops.math.matmul import GroupedProduct
from mspc.passes.base import Pass


class RouteExperts(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, GroupedProduct) for node in graph.nodes):
            return False
        from mspc.passes.lib.experts import route_experts  # late: few graphs have any

        return route_experts(graph)
