"""The graph that a rank runs: a compiled one may hold more than the numbers of now make it need."""

from __future__ import annotations

from mspc.compiler.rank_graphs import copied
from mspc.ir.graph import Graph, Parameter
from mspc.passes.fusion.update_rows import UpdateRows
from mspc.passes.lib.unused_states import NumberOf, drop_unused_parameters, stateless_nodes


def run_graph(graph: Graph, number_of: NumberOf) -> tuple[Graph, list[Parameter]]:
    """A rank's graph without those states of optimizers that numbers leave unused, where an update without states may
    do with the rows that are looked up; and the scalar Parameters on whose numbers this relies.

    number_of: see `stateless_nodes`.
    """
    stateless = stateless_nodes(graph, number_of)
    if not stateless:
        return graph, []
    own = copied(graph)
    copies = dict(zip(graph.nodes, own.nodes, strict=True))
    for found in stateless:
        found.apply(copies[found.node])
    UpdateRows().run(own)
    drop_unused_parameters(own)
    return own, [scalar for found in stateless for scalar in found.scalars]
