"""What an order of a rank's nodes depends on: who must come before whom, for what it reads, updates and sends, and what
each costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.nodes import seconds
from mspc.analysis.lifetimes import most_alive
from mspc.analysis.shadow_weights import SHADOW
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.varying import ascending
from mspc.ops.collective.base import Collective
from mspc.passes.communication.collective_order import sums_gradients

ONE_HOST = replace(H200, ranks_per_host=0)
"""What costs are reckoned for. With hosts they would depend on who is in a group, and so every rank would be a kind of
its own (`rank_kinds`) and might order its collectives in its own way."""


def _apart(nodes: Sequence[Node]) -> list[bool]:
    """Which nodes are sums of gradients over a group that nothing else uses."""
    collectives = [node for node in nodes if isinstance(node.op, Collective)]
    others: list[Sequence[int]] = []
    for node in collectives:
        if not sums_gradients(node) and (group := _group(node)) not in others:
            others.append(group)
    return [isinstance(n.op, Collective) and sums_gradients(n) and _group(n) not in others for n in nodes]


def _group(node: Node) -> Sequence[int]:
    """The ranks of a collective. One group uses one stream: its ranks must call its collectives in one order."""
    return ascending(node.op.members) if isinstance(node.op, Collective) else ()


def _is_seen(node: Node, known: dict[Graph, bool]) -> bool:
    """Whether it is seen from outside when a node runs, apart from what it updates and sends: it prints, or writes.
    known: the same of graphs that nodes run."""
    if not node.regions:
        return node.op.has_side_effect and not node.op.mutates and not node.op.is_collective
    for region in node.regions:
        if region not in known:
            known[region] = any([_is_seen(each, known) for each in region.nodes])
    return any(known[region] for region in node.regions)


class ScheduleFacts:
    """What a schedule depends on, by the numbers of the nodes.

    operands: the nodes whose results a node reads. is_view: its result is memory of its operands. changes: operands
    that it overwrites. is_collective: ranks run it together. apart: it has the stream of reductions. needs: the nodes
    that must come before it. costs: seconds.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = nodes = graph.nodes
        place: dict[Value, int] = {node: i for i, node in enumerate(nodes)}
        self.operands = [[place[value] for value in node.inputs if value in place] for node in nodes]
        self.results = [place[value] for value in graph.results if value in place]
        self.is_view = [node.op.is_view for node in nodes]
        self.changes: list[tuple[int, ...]] = [node.op.mutates for node in nodes]
        self.is_collective = [node.op.is_collective for node in nodes]
        self.apart = _apart(nodes)
        free = [view or SHADOW in node.attrs for view, node in zip(self.is_view, nodes, strict=True)]
        known: dict[Graph, tuple[float, float]] = {}
        self.costs = [0.0 if free[i] else seconds(node, ONE_HOST, known) for i, node in enumerate(nodes)]
        self.sizes = [0 if self.is_view[i] or self.changes[i] else node.type.nbytes for i, node in enumerate(nodes)]
        self.needs = self._dependencies(graph)

    def _dependencies(self, graph: Graph) -> list[list[int]]:
        needs: list[list[int]] = []
        memory: dict[Value, tuple[Value, ...]] = {p: (p,) for p in graph.parameters}
        written: dict[Value, int] = {}
        read: dict[Value, list[int]] = {}
        last_collective = last_effect = -1
        seen: dict[Graph, bool] = {}
        for i, node in enumerate(self.nodes):
            found = list(self.operands[i])
            mutates = set(self.changes[i])
            touched: dict[Value, bool] = {}
            for operand, value in enumerate(node.inputs):
                for parameter in memory.get(value, ()):
                    touched[parameter] = touched.get(parameter, False) or operand in mutates
            for parameter, changed in touched.items():
                if parameter in written:
                    found.append(written[parameter])
                if changed:
                    found += read.pop(parameter, ())
                    written[parameter] = i
                else:
                    read.setdefault(parameter, []).append(i)
            if mutates:
                found += [r for r in self.results if r < i]
            # A stored copy is overwritten with its parameter.
            if touched and (mutates or self.is_view[i] or SHADOW in node.attrs):
                memory[node] = tuple(touched)
            if self.is_collective[i]:
                if last_collective >= 0:
                    found.append(last_collective)
                last_collective = i
            if _is_seen(node, seen):
                if last_effect >= 0:
                    found.append(last_effect)
                last_effect = i
            needs.append(sorted(set(found)))
        return needs

    def most_alive(self, order: Sequence[int]) -> int:
        """Most bytes of nodes' results alive at once in this order."""
        return most_alive(order, self.operands, self.is_view, self.sizes, self.results)
