"""Gives every operator a sharding that the user left without one, and every parameter its slice.

Semi-automatic mode: forward operators without a strategy are cut along the batch (where that sends less, they follow
their neighbours). Automatic mode (sharding propagation): shardings spread from the configured operators and the data to
their neighbours, downstream first, each operator taking what costs the fewest bytes, or, where the header names a
`search_mode`, all operators are decided on together (`passes/search`); those of data parallel cells are cut along the
batch. In both modes a parameter is stored as its first reader needs it, configured readers first;
backward operators follow their operands, updates follow their parameter. Then backward operators are revisited for as
long as that saves bytes and costs no matrix work.

Input:  nodes with `in_layouts` where the user gave strategies. Output: all nodes and parameters with layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mspc.ir.graph import Graph
from mspc.passes.base import Pass
from mspc.passes.needs import DIFFERENTIATED, KNOWN, WHOLE, Need
from mspc.passes.search.whole_graph import mesh_of, place_forward
from mspc.passes.sharding.backward_layouts import BackwardLayouts
from mspc.passes.sharding.constraints import release_constraints
from mspc.passes.sharding.forward_layouts import cut_asked, cut_batch, spread
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.parameter_layouts import store_parameters
from mspc.passes.sharding.update_layouts import wanted_by_updates


@dataclass(frozen=True)
class PropagateSharding(Pass):
    """Decide the layouts of all nodes and parameters."""

    needs: ClassVar[tuple[Need, ...]] = (KNOWN, WHOLE, DIFFERENTIATED)

    def run(self, graph: Graph) -> bool:
        search = Search(graph)
        for node in graph.nodes:
            if node.in_layouts is not None and "strategy_from" not in node.attrs:
                node.attrs["strategy_from"] = "shard()"
        forward = [node for node in graph.nodes if node.phase == "forward"]
        search.structure(forward)
        if search.automatic:
            cut_asked(search, forward)
            if graph.attrs.get("search_mode"):
                place_forward(search, mesh_of(search.ranks))
            else:
                spread(search, forward)
        else:
            cut_batch(search, forward)
        store_parameters(search, forward)
        if release_constraints(graph):
            search.reread()
        search.wanted = wanted_by_updates(graph, search.rules, search.ranks)
        BackwardLayouts(search).place([node for node in graph.nodes if node.phase != "forward"])
        return True
