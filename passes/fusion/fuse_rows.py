"""Fuse operators along rows with the elementwise ones before and after them, for GPUs.

Input:  `%1 = Cast(%x)`, `%2 = LogSoftmax(%1)`, `%3 = Mul(%2, %w)`, `%4 = ReduceSum(%3)` over the last dimension, and
        `%5 = Neg(%4)`
Output: `%5 = FusedElementwise(%x, %w)` with these as its lines, of which the last has one element for every row

Beside what `fuse_elementwise` joins, members may read reductions of rows and go along rows themselves (Softmax and its
like), be broadcast, and depend on positions alone (classes, masks). A broadcast number or row is read
before its broadcast.
"""

from __future__ import annotations

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fuse_elementwise import fuse_groups, plain_sources


class FuseRows(Pass):
    def run(self, graph: Graph) -> bool:
        changed = remove_dead(graph)
        updates = Updates(graph)
        for node in graph.nodes:
            sources = plain_sources(node, updates)
            if sources != node.inputs:
                node.inputs = sources
                changed = True
        changed = remove_dead(graph) or changed
        return fuse_groups(graph, rows=True) or changed
