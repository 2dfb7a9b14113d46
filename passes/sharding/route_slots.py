"""Makes lookups of rows of writes into slots and reads of slots that networks write with a spare row.

Input:  `%3 = TensorScatterUpdate(zeros [17, 8], ExpandDims(%slot), %rows)`, `%4 = %3[:16]`, ...,
        `%7 = Concat(%6, zeros [1, 8])`, `%8 = Gather(%7, %slot)`
Output: `%4 = SetRows(%rows, %slot) {size: 16, limit: 17}`, ..., `%8 = TakeRows(%6, %slot) {limit: 17}`, shared
        by all ranks

Experts with room for some of all tokens are written so: slot 16 is that of tokens for which there is no room. With
the spare row no number of ranks divides the slots; without it they are sharded as the experts are, and ranks
exchange rows (`passes/communication/exchange_rows.py`). If no operator has a strategy all stay.
"""

from __future__ import annotations

import sys

from mspc.ir.graph import Graph
from mspc.ops.tensor.embedding import Gather
from mspc.passes.base import Pass

SCATTERS = "mspc.ops.tensor.scatter"
"""The module of scatters: a graph has none if nothing has loaded it, as few programs do."""


class RouteSlots(Pass):
    def run(self, graph: Graph) -> bool:
        if SCATTERS not in sys.modules and not any(isinstance(node.op, Gather) for node in graph.nodes):
            return False
        from mspc.passes.lib.experts import route_slots  # late: few graphs have any

        return route_slots(graph)
