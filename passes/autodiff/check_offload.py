"""Refuses cells to be offloaded for gradients of which gradients read nothing.

Input:  `%1 = Reshape(%0) cnode_attrs: {offload: "Default/network-Flat, Auto"}`, which no backward operator reads
Output: an error at the line of the operator

Networks without gradients and cells that are recomputed, which store nothing by intent, are not checked.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value
from mspc.passes.base import WHOLE, Pass
from mspc.passes.lib.host_memory import cell_of


class CheckOffload(Pass):
    """Refuse offload marks without effect; the graph stays as it is."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        nodes = [*graph.all_nodes()]
        first: dict[str, Node] = {}
        for node in nodes:
            cell = cell_of(node)
            if cell and node.phase == "forward":
                first.setdefault(cell, node)
        if not first or not any(node.phase == "backward" for node in nodes):
            return False
        # Cells that gradients read, or that store nothing by intent; gradients may read the results of regions.
        read = set[Value](value for each in graph.graphs()[1:] for value in each.results)
        keeping: set[str] = set()
        for node in reversed(nodes):
            if node.phase != "forward" or (node in read and node.op.is_view):
                read.update(node.inputs)
            if node in read or node.regions or node.attrs.get("recompute"):
                keeping.add(cell_of(node))
        for cell, node in first.items():
            if not any(other == cell or other.startswith(f"{cell}/") for other in keeping):
                raise node.error(
                    f"{cell} is to be stored on the host, and gradients read none of its values",
                    ["call offload() of a cell whose results gradients read, as products and activations are"],
                )
        return False
