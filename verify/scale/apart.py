"""Gives every reader of a made-up tensor one of its own, as two readers may read it as slices of different tensors."""

from __future__ import annotations

from mspc.ir.copies import copied_node
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import BroadcastTo


def made_apart(graph: Graph, constants: dict[int, tuple[Constant, ...]]) -> None:
    """Copy nodes without operands, and constants of several elements, for each place where they are read, in a graph
    and its regions. constants: by identity those that ranks have of their own, which gets those of the copies."""
    for each in graph.graphs():
        _apart(each, constants)


def _apart(graph: Graph, constants: dict[int, tuple[Constant, ...]]) -> None:
    nodes: list[Node] = []
    taken: set[Value] = set()

    def own(value: Value) -> Value:
        if isinstance(value, Constant) and value.shape:
            if value not in taken:
                taken.add(value)
                return value
            made = Constant(value.value, value.tensor_type.dtype)
            if id(value) in constants:
                constants[id(made)] = constants[id(value)]
            return made
        if not isinstance(value, Node) or not _is_uniform(value):
            return value
        if value not in taken:
            taken.add(value)
            return value
        copy = copied_node(value, value.inputs, value.op)
        nodes.append(copy)
        return copy

    for node in graph.nodes:
        node.inputs = [own(v) for v in node.inputs]
        nodes.append(node)
    graph.results = [own(v) for v in graph.results]
    graph.nodes = nodes


def _is_uniform(node: Node) -> bool:
    """Whether all elements are one number, which no value says."""
    if not node.inputs:
        return isinstance(node.op, Op) and node.op.uniform() is not None
    return isinstance(node.op, BroadcastTo) and isinstance(node.inputs[0], Constant) and not node.inputs[0].shape
