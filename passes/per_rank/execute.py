"""Finishes a rank's graph as the last pass: nothing unused, nothing repeated, ready to run.

Input: the rank's graph as sliced. Output: the same computation in as few nodes; layouts that only the compiler needed
are gone, those of parameters stay, since a run slices weights and inputs by them.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import Simplify


@dataclass(frozen=True)
class Execute(Pass):
    """Simplify once more and drop the compiler's own annotations."""

    def run(self, graph: Graph) -> bool:
        graph.nodes = [node for node in graph.nodes if not node.attrs.get("unused")]
        for node in graph.nodes:
            node.layout = None
            node.in_layouts = None
            node.forward = None
        return Simplify().run(graph)
