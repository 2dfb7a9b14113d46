"""Finishes a rank's graph as the last pass: nothing unused, nothing repeated, ready to run.

Input: the rank's graph as sliced. Output: the same computation in as few nodes; layouts that only the compiler needed
are gone, those of parameters stay, since a run slices weights and inputs by them.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.passes.base import WHOLE, Pass
from mspc.passes.cleanup.simplify import Simplify


class Execute(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        changed = False
        for each in graph.graphs():
            used = [node for node in each.nodes if not node.attrs.get("unused")]
            changed |= len(used) < len(each.nodes)
            each.nodes = used
            for node in used:
                changed |= (node.layout, node.in_layouts, node.forward) != (None, None, None)
                node.layout = None
                node.in_layouts = None
                node.forward = None
        return Simplify().run(graph) or changed
