"""Decides the layouts of all operators of a graph together, where its header names a `search_mode` that does so.

Where the header names no such mode, nothing changes, and `propagate_sharding` decides.

Input:  nodes with `in_layouts` where the user gave strategies, and `search_mode : dynamic_programming` in the header.
Output: all nodes and parameters with layouts; in the header what the plan costs and what is proved of it.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.base import DIFFERENTIATED, GLOBAL, KNOWN, OPENED, Pass
from mspc.passes.lib.plan_header import wants_search


@dataclass(frozen=True)
class SearchSharding(Pass):
    """Decide the layouts of all nodes and parameters together."""

    regions = OPENED
    needs = (KNOWN, GLOBAL, DIFFERENTIATED)

    def run(self, graph: Graph) -> bool:
        if not wants_search(graph):
            return False
        from mspc.search.layouts.cheapest import decide_together  # late: most compiles search for nothing

        decide_together(graph)
        return True
