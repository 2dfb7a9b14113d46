"""Timeline of a step on its streams: compute, communication, and the share of communication hidden by compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mspc.analysis.cost.machine import (
    ATTENTION,
    CONVOLUTIONS,
    H200,
    HOST_COPIES,
    KNOWN_MACHINES,
    LIKE,
    PRODUCTS,
    TF32,
    UNROUNDED,
    Machine,
)
from mspc.analysis.cost.nodes import kind_of_traffic, kind_of_work, seconds, seconds_inside, work_of
from mspc.ir.graph import Graph, Node, Value, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective

RECEIVED = "ReceiveFromStage"
"""Operator of a message that another stage sends while this one works, until it is read. The name is enough: few
programs have such operators, and only they import its class."""


class StreamTimeline:
    """Timeline of a step of a graph in the order of its nodes, on one stream and on several.

    compute, communication, copies: seconds of the nodes of a kind by themselves; copies are those between the memory of
    the device and of the host. total: seconds of the step if nodes with an attribute `stream` run beside the rest, each
    such stream for itself. spans: (begin, seconds) of every node that runs.
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
        """Seconds of the step if all nodes run one after the other."""
        return self.compute + self.communication + self.copies

    @property
    def hidden(self) -> float:
        """The part of the communication, and of copies to the host and back, that costs no time, 0 to 1."""
        beside = self.communication + self.copies
        return (self.alone - self.total) / beside if beside else 1.0


# Finds work of a network for which a machine has no rate, so that the rate of another element type is used instead.
#
# Kinds of work take the rates of similar kinds, which are near. The matmuls of another element type may be ten times as
# fast.


@dataclass(frozen=True)
class MissingRate:
    """Kind of work, without its form, on an element type for which a rate is missing: for example `products` of
    `Float32`, or of `TF32`, as in the names of rates."""

    kind: str
    dtype: str


def missing_rates(graphs: Iterable[Graph], machine: Machine) -> tuple[MissingRate, ...]:
    """Return the kinds of work, in the order of the nodes of these graphs and of those that they run, that are costed
    at `other_products`. Return () for the built-in machines, whose `other_products` are meant for all unlisted
    types."""
    if machine.under({}) in KNOWN_MACHINES.values():
        return ()
    found: dict[MissingRate, None] = {}
    for graph in graphs:
        rates = machine.under(graph.attrs)
        for node in (node for node in graph.all_nodes() if work_of(node)):
            kind, dtype = kind_of_work(node), operand_types(node)[0].dtype
            if rates.known_rate(kind, dtype) is None:
                found[MissingRate(_without_form(kind), rates.name_of(kind, dtype))] = None
    return tuple(found)


def stand_in(machine: Machine, missing: MissingRate) -> str:
    """Return the name of the matmul rate used instead: plain Float32 for `TF32`, else the one equal to
    `other_products`; "" if no rate is equal."""
    rates = machine.work.get(PRODUCTS, {})
    if missing.dtype == TF32 and UNROUNDED in rates:
        return UNROUNDED
    return next((name for name, rate in rates.items() if rate == machine.other_products), "")


def together(missing: Iterable[Sequence[MissingRate]]) -> tuple[MissingRate, ...]:
    """Return the missing rates of several programs, each once."""
    return tuple(dict.fromkeys(each for those in missing for each in those))


def _without_form(kind: str) -> str:
    while LIKE.get(kind, PRODUCTS) != PRODUCTS:
        kind = LIKE[kind]
    return kind if kind in (*ATTENTION, *CONVOLUTIONS) else PRODUCTS
