"""What nodes cost on a rank: bytes that collectives send and seconds of everything, by one description of a machine.

The figures are rough: enough to decide what should run beside a collective, and to compare layouts.
"""

from __future__ import annotations

from mspc.analysis.machine import H200, Machine
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ops.collective.base import Collective
from mspc.ops.op import Op

UNKNOWN_GROUP = 2
"""Ranks of a group that is known by name only."""


def sent_bytes(node: Node) -> float:
    """Bytes that a rank sends for one node, in the mean of its group and by ring algorithms; 0 where it computes."""
    if not isinstance(node.op, Collective):
        return 0.0
    operand = sum(value.type.nbytes for value in node.inputs)
    return node.op.sent_bytes(operand, len(node.op.members) or UNKNOWN_GROUP)


def seconds(node: Node, machine: Machine = H200) -> float:
    """Time of one node that runs, by itself."""
    if isinstance(node.op, Collective):
        return machine.link_of(node.op.members).seconds(sent_bytes(node))
    moved = sum(value.type.nbytes for value in node.inputs) + node.type.nbytes
    return machine.kernel + max(moved / machine.memory, _computing(node, machine))


def _computing(node: Node, machine: Machine) -> float:
    """Seconds in which matrices are multiplied; 0 for what memory bounds."""
    if not isinstance(node.op, Op):
        return 0.0
    types = [type for value in node.inputs for type in element_types(value.type)]
    operations = node.op.operations(types)
    return operations / machine.product_rate(types[0].dtype) if operations else 0.0


class Timeline:
    """A step of a graph in the order of its nodes, on one stream and on several.

    compute, communication: seconds of the nodes of either kind by themselves. total: seconds of the step with what has
    an attribute `stream` beside the rest, each such stream for itself.
    """

    def __init__(self, graph: Graph, machine: Machine = H200) -> None:
        self.compute = self.communication = 0.0
        main = 0.0
        sides: dict[object, float] = {}
        over: dict[Value, float] = {}
        for node in graph.nodes:
            ready = max((over.get(value, 0.0) for value in node.inputs), default=0.0)
            if node.op.is_view:
                over[node] = ready
                continue
            time = seconds(node, machine)
            if isinstance(node.op, Collective):
                self.communication += time
            else:
                self.compute += time
            stream = node.attrs.get("stream")
            if stream:
                over[node] = sides[stream] = max(sides.get(stream, 0.0), main) + time
            else:
                main = max(main, ready) + time
        self.total = max(main, *sides.values()) if sides else main

    @property
    def alone(self) -> float:
        """Seconds of the step with everything one after the other."""
        return self.compute + self.communication

    @property
    def hidden(self) -> float:
        """The part of the communication that costs no time, 0 to 1."""
        return (self.alone - self.total) / self.communication if self.communication else 1.0
