"""Fuse as `fuse_rows` does if a step has many elements: on CPUs.

There fused rows are compiled loops, which pass over memory less often. Small graphs run by NumPy, which goes over
elementwise lines block by block and over rows line after line.
"""

from __future__ import annotations

from mspc.analysis.aliasing import step_elements
from mspc.ir.graph import Graph
from mspc.passes.base import WHOLE, Pass

MIN_ELEMENTS = 1 << 24
"""Elements of a step, twice as many as those from which loops are compiled: fused, there are fewer."""


class FuseLargeRows(Pass):
    """Fuse operators along rows with the elementwise ones around them, in all graphs of a large program."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        if step_elements(graph) < MIN_ELEMENTS:
            return False
        from mspc.passes.fusion.fuse_rows import FuseRows  # late: most networks on CPUs are small

        return any([FuseRows().run(each) for each in graph.graphs()])
