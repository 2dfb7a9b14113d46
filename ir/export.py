"""Conversion of a graph to networkx, for questions about paths. The storage remains `Graph`.

networkx is imported only in the functions that need it, because it costs a tenth of a second at start-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mspc.ir.graph import Graph, Node, Parameter, Value

if TYPE_CHECKING:
    import networkx


def to_networkx(graph: Graph) -> networkx.DiGraph[Value]:
    """Return a graph with one vertex per parameter and node, and one edge from every value to every reader.

    Edges hold `operands`, the operand indices. Constants are left out. Vertices come in run order.
    """
    import networkx

    found: networkx.DiGraph[Value] = networkx.DiGraph(name=graph.name)
    found.add_nodes_from(graph.values())
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if isinstance(value, Parameter | Node):
                operands = found.edges[value, node]["operands"] if found.has_edge(value, node) else ()
                found.add_edge(value, node, operands=(*operands, index))
    return found


def find_cycle(graph: Graph) -> list[Value]:
    """Return values that depend on each other in a cycle, or [] if there is none. The order of nodes is irrelevant."""
    import networkx

    try:
        edges = cast(Any, networkx).find_cycle(to_networkx(graph))
        return [edge[0] for edge in edges]
    except networkx.NetworkXNoCycle:
        return []
