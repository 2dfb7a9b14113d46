"""In data parallel mode, takes statistics of a batch over all ranks' rows together, the global batch.

Input:  `%3 = BatchNorm(%2, ...) {is_training: true}`, in the graph that every rank runs on rows of its own
Output: the same with `groups: ((0, 1, ..., 7))`: its mean and variance are those of all ranks' rows

So a step on many ranks equals one device's on all rows. An operator that has groups of its own keeps them.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ops.op import Op
from mspc.passes.base import GLOBAL, Pass


class ShareStatistics(Pass):
    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        ranks = tuple(range(int(graph.attrs.get("ranks", 1))))
        changed = False
        for node in graph.nodes if len(ranks) > 1 else ():
            if isinstance(node.op, Op) and type(node.op).over_all_ranks is not Op.over_all_ranks:
                shared = node.op.over_all_ranks(ranks)
                changed = changed or shared != node.op
                node.op = shared
        return changed
