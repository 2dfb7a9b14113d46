"""Removes the placeholders of gradients that the script defines, once gradients are taken."""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.structural import TupleGetItem


def drop_own_gradients(graph: Graph) -> bool:
    """Read results in the place of their OwnGradient, and drop what was computed of placeholders; says whether there
    was any."""
    gone: set[Value] = set()
    replaced: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [replaced.get(value, value) for value in node.inputs]
        source = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
        if isinstance(source, Node) and isinstance(source.op, OwnGradient) and isinstance(node.op, TupleGetItem):
            replaced[node] = source.inputs[node.op.index]
            gone.add(node)
        elif isinstance(node.op, GradientPlaceholder | OwnGradient) or any(value in gone for value in node.inputs):
            gone.add(node)
    graph.nodes = [node for node in graph.nodes if node not in gone]
    graph.results = [replaced.get(value, value) for value in graph.results]
    return bool(gone)
