"""Gives every operator a sharding that the user left without one, and every parameter its slice.

Semi-automatic mode: forward operators without a strategy are sharded along the batch (if that sends less, they
follow their neighbours). Automatic mode (sharding propagation): shardings spread from the configured operators and
the data to their neighbours, downstream first, each operator taking the choice that costs the fewest bytes; those of
data parallel cells are sharded along the batch. If the header names a `search_mode` that decides on all operators
together, `search_sharding` has done so, and nothing is left to do. In both modes a parameter is stored as its first
reader needs it, configured readers first; backward operators follow their operands, updates follow their parameter.
Then backward operators are revisited for as long as that saves bytes and costs no matrix work.

Input:  nodes with `in_layouts` if the user gave strategies. Output: all nodes and parameters with layouts.
"""

from __future__ import annotations

from functools import partial

from mspc.ir.graph import Graph, Node
from mspc.ops.control.structural import RegionBoundary
from mspc.passes.base import DIFFERENTIATED, GLOBAL, KNOWN, OPENED, SEARCHED, Pass
from mspc.passes.lib.choices import SHARD, multiplies, release_constraints, wants_search
from mspc.passes.lib.layout_search import PlanTotal, Search
from mspc.passes.lib.placement import work_of
from mspc.passes.lib.propagation import (
    BackwardLayouts,
    place_updates,
    shard_asked,
    shard_batch,
    spread,
    store_parameters,
    wanted_by_updates,
)


class PropagateSharding(Pass):
    regions = OPENED
    needs = (KNOWN, GLOBAL, DIFFERENTIATED, SEARCHED)

    def run(self, graph: Graph) -> bool:
        if wants_search(graph):
            return False
        if any(isinstance(node.op, RegionBoundary) for node in graph.nodes):
            from mspc.passes.lib.loop_layouts import settle_loops  # late: few graphs have loops

            settle_loops(graph, partial(_decide, graph))
        else:
            _decide(graph)
        return True


def _decide(graph: Graph) -> None:
    search, forward = begun(graph)
    decide = spread if search.automatic else shard_batch
    decide(search, forward)
    finish(search, forward)


def begun(graph: Graph) -> tuple[Search, list[Node]]:
    """The search for a graph, and its forward nodes, with all that is decided before anything is looked for."""
    search = Search(graph)
    for node in graph.nodes:
        if node.in_layouts is not None and "strategy_from" not in node.attrs:
            node.attrs["strategy_from"] = SHARD
    forward = [node for node in graph.nodes if node.phase == "forward"]
    search.structure(forward)
    if search.automatic:
        shard_asked(search, forward)
        place_updates(search)
    return search, forward


def finish(search: Search, forward: list[Node]) -> PlanTotal:
    """Place everything that follows from the layouts of the forward graph, and return the costs."""
    graph = search.graph
    search.restructure()
    store_parameters(search, forward)
    if release_constraints(graph):
        search.reread()
    search.wanted = wanted_by_updates(graph, search.rules, search.ranks)
    backward = BackwardLayouts(search)
    unplaced = {node for node in forward if search.rules.get(node) is None and node.layout is None}  # show gradients
    nodes = [node for node in graph.nodes if node.phase != "forward" or node in unplaced]
    backward.place(nodes)
    total = backward.total(nodes)
    products = [node for node in forward if (rule := search.rules.get(node)) is not None and multiplies(rule, node)]
    work = sum(work_of(node, search.rules[node]) for node in products)
    return PlanTotal(total.nbytes, total.moves, total.work + work)
