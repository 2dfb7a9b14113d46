"""Takes small collectives that the next node waits for back to the main stream of a GPU: nothing runs beside them, they
would queue after large ones, and to change streams twice takes longer than they do.

Input:  `%1 = ReduceSum(%x)`, `%2 = AllReduce(%1) {stream: communication}`, `%3 = Mul(%2, %a)`
Output: `%1 = ReduceSum(%x)`, `%2 = AllReduce(%1)`, `%3 = Mul(%2, %a)`

The sums of batch statistics over several ranks are of this kind. All ranks see the same nodes in the same order, so
they decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.analysis.aliasing import SHADOW
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.collective.collectives import is_small
from mspc.passes.base import Pass


class StayOnMainStream(Pass):
    def run(self, graph: Graph) -> bool:
        changed = False
        for index, node in enumerate(graph.nodes):
            if node.attrs.get("stream") == "communication" and is_small(node) and awaiting(graph.nodes, index):
                del node.attrs["stream"]
                changed = True
        return changed


def awaiting(nodes: Sequence[Node], index: int) -> Node | None:
    """The next node that computes at every step, if it reads the result of the one at `index`; else None."""
    shown: set[Value] = {nodes[index]}
    for node in nodes[index + 1 :]:
        reads = not shown.isdisjoint(node.inputs)
        if node.op.is_view:
            if reads:
                shown.add(node)
        elif not node.op.is_collective and SHADOW not in node.attrs:
            return node if reads else None
    return None
