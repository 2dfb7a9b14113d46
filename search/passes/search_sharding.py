"""Joint search for the layouts of all operators of a graph, if its header names a `search_mode`.

Without that mode nothing changes, and `propagate_sharding` decides.

Input:  nodes with `in_layouts` if the user gave strategies, and `search_mode : dynamic_programming` in the header.
Output: all nodes and parameters with layouts; in the header the plan's cost and its proven bound.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.passes.base import DIFFERENTIATED, GLOBAL, KNOWN, OPENED, Pass
from mspc.passes.lib.choices import wants_search


class SearchSharding(Pass):
    regions = OPENED
    needs = (KNOWN, GLOBAL, DIFFERENTIATED)

    def run(self, graph: Graph) -> bool:
        if not wants_search(graph):
            return False
        from mspc.search.layouts.cheapest import assign_cheapest_layouts  # imported late: most compiles do not search

        assign_cheapest_layouts(graph)
        return True
