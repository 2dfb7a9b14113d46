"""A step is laid out on its streams here: what is computed, what is sent, and how much of that hides behind the rest.
"""

from __future__ import annotations

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.machine import HOST_COPIES, Machine
from mspc.analysis.cost.nodes import kind_of_traffic, seconds, seconds_inside
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.collective.base import Collective

RECEIVED = "ReceiveFromStage"
"""The operator of a message that another stage sends while this one works, up to where it is read. By its name: few
programs have any, and load it."""


class StreamTimeline:
    """A step of a graph in the order of its nodes, on one stream and on several.

    compute, communication, copies: seconds of the nodes of a kind by themselves; copies are those between the memory of
    the device and of the host. total: seconds of the step with what has
    an attribute `stream` beside the rest, each such stream for itself. spans: (begin, seconds) of every node that runs.
    """

    def __init__(self, graph: Graph, machine: Machine = H200) -> None:
        machine = machine.under(graph.attrs)
        self.compute = self.communication = self.copies = 0.0
        self.spans: dict[Node, tuple[float, float]] = {}
        known: dict[Graph, tuple[float, float]] = {}
        main = 0.0
        sides: dict[object, float] = {}
        over: dict[Value, float] = {}
        for node in graph.nodes:
            ready = max((over.get(value, 0.0) for value in node.inputs), default=0.0)
            if node.op.is_view:
                over[node] = ready
                continue
            if node.regions:
                compute, communication = seconds_inside(node, machine, known)
            else:
                time = seconds(node, machine)
                compute, communication = (0.0, time) if isinstance(node.op, Collective) else (time, 0.0)
            time = compute + communication
            if kind_of_traffic(node) == HOST_COPIES:
                self.copies, compute = self.copies + compute, 0.0
            self.compute += compute
            self.communication += communication
            stream = node.attrs.get("stream")
            if stream:
                came = time if node.op.name == RECEIVED else 0.0
                begin = max(sides.get(stream, 0.0), main - came)
                over[node] = sides[stream] = begin + time
            else:
                begin = max(main, ready)
                main = begin + time
            self.spans[node] = begin, time
        self.total = max(main, *sides.values()) if sides else main

    @property
    def alone(self) -> float:
        """Seconds of the step with everything one after the other."""
        return self.compute + self.communication + self.copies

    @property
    def hidden(self) -> float:
        """The part of the communication, and of copies to the host and back, that costs no time, 0 to 1."""
        beside = self.communication + self.copies
        return (self.alone - self.total) / beside if beside else 1.0
