"""Takes operators of a rank's graph apart into several, which later passes join to their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.passes.cleanup.simplify import remove_dead

Maker = Callable[[Builder, Node], Sequence[Value] | None]
"""Emits what a node is, and returns its results; None: it stays."""


def split(graph: Graph, make: Maker) -> bool:
    """Replace nodes by what `make` emits for them; whether there were any. What is emitted names the node in its
    attribute `fused`."""
    read_as_tuples = {v for node in graph.nodes if not isinstance(node.op, TupleGetItem) for v in node.inputs}
    read_as_tuples.update(graph.results)
    nodes: list[Node] = []
    b = Builder(graph, nodes)
    parts: dict[Value, Sequence[Value]] = {}
    replaced: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [replaced.get(value, value) for value in node.inputs]
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in parts:
            replaced[node] = parts[node.inputs[0]][node.op.index]
            continue
        b.like(node)
        b.phase, b.forward = node.phase, node.forward
        begin = len(nodes)
        made = make(b, node)
        if made is None:
            nodes.append(node)
            continue
        for each in nodes[begin:]:
            each.attrs["fused"] = (node.label,)
        if isinstance(node.type, TensorType):
            replaced[node] = made[0]
            continue
        parts[node] = made
        if node in read_as_tuples:
            replaced[node] = b.emit(MakeTuple(), *made)
    if not parts and not replaced:
        return False
    graph.nodes = nodes
    graph.replace(replaced)
    remove_dead(graph)
    return True
