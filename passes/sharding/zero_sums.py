"""Sums that loops carry and that begin at zero: zeros lie in no layout that means anything, so each has its own."""

from __future__ import annotations

from mspc.ir.copies import copied_node
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ops.control.borders import Enter
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import BroadcastTo


def take_zeros_apart(graph: Graph) -> None:
    """Give every sum that begins at zero zeros of its own, as sums of one shape may be carried in different layouts."""
    taken: set[Value] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.op, Enter) and is_zero(node.inputs[0]):
            zeros = node.inputs[0]
            if isinstance(zeros, Node) and (zeros in taken or zeros.phase != node.phase):
                zeros = copied_node(zeros, zeros.inputs)
                zeros.phase = node.phase
                nodes.append(zeros)
                node.inputs[0] = zeros
            taken.add(zeros)
        nodes.append(node)
    graph.nodes = nodes


def is_zero(value: Value) -> bool:
    """Whether a value is a tensor of zeros that is made where it is needed."""
    if isinstance(value, Constant):
        return False
    if not isinstance(value, Node) or not isinstance(value.op, Op) or not value.inputs:
        return False
    zero = value.inputs[0]
    made = isinstance(value.op, BroadcastTo) or value.op.follows_neighbours
    return made and isinstance(zero, Constant) and zero.value.size == 1 and not zero.value.any()
