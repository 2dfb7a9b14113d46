"""Numbers the nodes that run a graph which others run, too, and which draws: each draws numbers of its own.

Input:  `%1 = Call(%0) {regions: @layer}`, `%3 = Call(%2) {regions: @layer}`, where @layer has a Dropout
Output: the same with `call: 1` and `call: 2` among their cnode_attrs

The nodes that compute gradients of such a node have its number: what they draw again is what it has drawn.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node
from mspc.ops.control.structural import CALL
from mspc.ops.op import Op


def number_calls(program: Graph) -> bool:
    """Number those that have no numbers yet, on from the highest; says whether there were any."""
    graphs = program.graphs()
    runners: dict[Graph, list[Node]] = {}
    for graph in graphs:
        for node in graph.nodes:
            for region in node.regions:
                runners.setdefault(region, []).append(node)
    found = [node for graph in graphs for node in graph.nodes if node.regions]
    highest = max((int(node.attrs.get(CALL, 0)) for node in found), default=0)
    changed = False
    for node in found:
        if CALL not in node.attrs and any(len(runners[region]) > 1 and _draws(region) for region in node.regions):
            highest += 1
            node.attrs[CALL] = highest
            changed = True
    return changed


def _draws(region: Graph) -> bool:
    return any(isinstance(node.op, Op) and node.op.draws for graph in region.graphs() for node in graph.nodes)
