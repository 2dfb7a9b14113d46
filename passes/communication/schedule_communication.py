"""Runs collectives beside computation: each starts as soon as its operands are ready, on a side stream, and nodes that
do not need its result run before its readers. Sums of gradients over a group that nothing else uses have a stream of
their own: they take long and nobody waits for them, so that others should not queue after them. They are put off while
another collective is under way, with which they would share the link.

Input:  `%1 = MatMul(%dy, %w)`, `%2 = MatMul(%x, %dy)`, `%3 = AllReduce(%1)`, `%4 = Add(%3, %a)`
Output: `%1 = MatMul(%dy, %w)`, `%2 = AllReduce(%1) {stream: communication}`, `%3 = MatMul(%x, %dy)`, `%4 = Add(%2, %a)`

The nodes are listed anew as these streams would run them, by the times of `analysis.cost`. Operators that the next
collectives wait for come first; others (gradients of weights, updates) fill the time in which the rest waits for a
result. Nothing is put off for longer than a few collectives, since its operands stay alive meanwhile, and nothing moves
up by more than one collective, since its result would; if memory grows all the same, the nodes are put off for fewer
collectives, and at last not at all.

Collectives keep their order among each other, which is that of the graph of all ranks. So ranks that share a group
call its collectives in one order, and a runtime that runs node by node cannot come to a deadlock. A parameter, and a
copy of it that is `kept`, is read and updated in the original order of the nodes, and nothing is updated before the
results of the graph that were known before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from mspc.analysis.aliasing import SHADOW, most_alive
from mspc.analysis.cost.machine import H200, Machine
from mspc.analysis.cost.nodes import seconds
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.varying import ascending
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather
from mspc.passes.base import Pass
from mspc.passes.lib.collective_order import parameter_of, sums_gradients

ONE_HOST = replace(H200, ranks_per_host=0)
"""The machine of the costs. With hosts they would depend on the members of a group, and so every rank would be a kind
of its own (`rank_kinds`) and might order its collectives in its own way."""
PATIENCE = (6, 3, 1)
"""The number of collectives by which a ready node may be delayed; the next one is tried if memory grows too much."""
GROWTH = 1.03
"""How much more memory may be alive at once, in values that nodes make, than in the order as it stood."""
EARLY = 1
"""How many collectives a node may be taken before."""
AHEAD = 64 << 20
"""Bytes of parameters that may be gathered before their first use begins, beside the first such parameter."""
SLOWED = 2.0
"""How much longer a reduction of gradients is taken to need beside computation than alone. An update that comes too
early holds up all that is after it (measured: a twentieth of a step), one that comes late costs nothing."""


class ScheduleCommunication(Pass):
    """Put collectives on the stream of communication and order the nodes around them."""

    def run(self, graph: Graph) -> bool:
        nodes = graph.nodes
        if not any(isinstance(node.op, Collective) for node in nodes):
            return False
        facts = ScheduleFacts(graph, ONE_HOST.under(graph.attrs))
        graph.nodes = [nodes[i] for i in launch_order(facts)]
        for node, apart in zip(nodes, facts.apart, strict=True):
            if isinstance(node.op, Collective):
                node.attrs["stream"] = "reduction" if apart else "communication"
        return True


def launch_order(facts: ScheduleFacts) -> Sequence[int]:
    """The numbers of a graph's nodes in the order in which they are to be launched."""
    whole = range(len(facts.nodes))
    limit = GROWTH * facts.most_alive(whole)
    for patience in PATIENCE:
        found = _Schedule(facts, patience).order
        if facts.most_alive(found) <= limit:
            return found
    return whole


def _stream_group(node: Node) -> Sequence[int]:
    """Return the ranks of a collective. One group uses one stream: its ranks must call its collectives in one order."""
    return ascending(node.op.members) if isinstance(node.op, Collective) else ()


def _is_seen(node: Node, known: dict[Graph, bool]) -> bool:
    """Return whether the time of a node's run is visible from outside, apart from its updates and messages: it prints,
    or writes. known: the same of graphs that nodes run."""
    if not node.regions:
        return node.op.has_side_effect and not node.op.mutates and not node.op.is_collective
    for region in node.regions:
        if region not in known:
            known[region] = any([_is_seen(each, known) for each in region.nodes])
    return any(known[region] for region in node.regions)


class ScheduleFacts:
    """The facts that decide a schedule, by the numbers of the nodes.

    operands: the nodes whose results a node reads. is_view: its result is memory of its operands. changes: operands
    that it overwrites. is_collective: ranks run it together. apart: it has the stream of reductions. needs: the nodes
    that must come before it. costs: seconds on the machine.
    """

    def __init__(self, graph: Graph, machine: Machine = ONE_HOST) -> None:
        self.nodes = nodes = graph.nodes
        place: dict[Value, int] = {node: i for i, node in enumerate(nodes)}
        self.operands = [[place[value] for value in node.inputs if value in place] for node in nodes]
        self.results = [place[value] for value in graph.results if value in place]
        self.is_view = [node.op.is_view for node in nodes]
        self.changes: list[tuple[int, ...]] = [node.op.mutates for node in nodes]
        self.is_collective = [node.op.is_collective for node in nodes]
        collectives = [node for node in nodes if isinstance(node.op, Collective)]
        others = [_stream_group(node) for node in collectives if not sums_gradients(node)]
        self.apart = [
            isinstance(n.op, Collective) and sums_gradients(n) and _stream_group(n) not in others for n in nodes
        ]
        """Which nodes are sums of gradients over a group that nothing else uses."""
        free = [view or SHADOW in node.attrs for view, node in zip(self.is_view, nodes, strict=True)]
        known: dict[Graph, tuple[float, float]] = {}
        self.costs = [0.0 if free[i] else seconds(node, machine, known) for i, node in enumerate(nodes)]
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


class _Schedule:
    """Runs the nodes on their streams in thought; `order` lists them as they were launched."""

    def __init__(self, facts: ScheduleFacts, patience: int) -> None:
        self.facts, self.patience = facts, patience
        self.nodes, self.needs, self.costs = facts.nodes, facts.needs, facts.costs
        self.is_collective = facts.is_collective
        nodes = facts.nodes
        self.collectives = [i for i, node in enumerate(nodes) if node.op.is_collective]
        self.missing = [len(found) for found in self.needs]
        self.readers: list[list[int]] = [[] for _ in nodes]
        for i, found in enumerate(self.needs):
            for other in found:
                self.readers[other].append(i)
        self.goal = self._first_collectives()
        self.gathered = {
            i: node.type.nbytes for i, node in enumerate(nodes)
            if isinstance(node.op, AllGather) and parameter_of(node.inputs[0]) is not None
        }  # fmt: skip
        self.order: list[int] = []
        self.over = [0.0] * len(nodes)
        """The time at which a node's result is there; for a node of the main stream, the part of a collective's time it
        hides."""
        self.main = self.side = self.reduction = 0.0
        self.next = 0
        self.ahead = 0
        self.home = self._last_collectives()
        self.held: list[tuple[int, int]] = []
        self.able: list[tuple[int, float, int]] = []
        self.stalled: list[tuple[float, int, int]] = []
        for i, count in enumerate(self.missing):
            if not count:
                self._note_launched(i)
        self._run()

    def _first_collectives(self) -> list[int]:
        """Return for every node the number of the first collective that needs it."""
        number = {i: k for k, i in enumerate(self.collectives)}
        last = len(self.collectives)
        goal = [last] * len(self.nodes)
        for i in range(len(self.nodes) - 1, -1, -1):
            mine = number.get(i, goal[i])
            for other in self.needs[i]:
                if other not in number and mine < goal[other]:
                    goal[other] = mine
        return goal

    def _last_collectives(self) -> list[int]:
        """Return for every node the number of collectives up to the last that was before it and gathers no parameter; 0
        for updates, whose results nobody reads."""
        count = past = 0
        homes = [0] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            if node.phase != "update" and not self.facts.is_view[i]:
                homes[i] = past
            if self.is_collective[i]:
                count += 1
                past = past if i in self.gathered else count
        return homes

    def _run(self) -> None:
        nodes, able, stalled, held = self.nodes, self.able, self.stalled, self.held
        while len(self.order) < len(nodes):
            self._start_collectives(forced=not (able or stalled or held))
            while held and (held[0][0] <= self.next + EARLY or not (able or stalled)):
                self._make_ready(heapq.heappop(held)[1])
            while stalled and stalled[0][0] <= self.main:
                ready, rank, i = heapq.heappop(stalled)
                heapq.heappush(able, self._sort_in(ready, rank, i))
            if able:
                *_, i = heapq.heappop(able)
                self.main += self.costs[i]
                self._launched(i)
            elif stalled:
                self.main = max(self.main, stalled[0][0])

    def _start_collectives(self, forced: bool) -> None:
        while self.next < len(self.collectives):
            i = self.collectives[self.next]
            if self.missing[i]:
                return
            if i in self.gathered:
                if self.ahead and self.ahead + self.gathered[i] > AHEAD and not forced:
                    return
                self.ahead += self.gathered[i]
            if self.facts.apart[i] and self._lets_others_end() and not forced:
                return
            forced = False
            self.next += 1
            if self.facts.apart[i]:
                self.reduction = max(self.reduction, self.side, self.main) + SLOWED * self.costs[i]
                self.over[i] = self.reduction
            else:
                self.side = max(self.side, self.main) + self.costs[i]
                self.over[i] = self.side
            self._launched(i)

    def _lets_others_end(self) -> bool:
        """Return whether a reduction of gradients waits for now: another collective is under way, and the next one does
        not wait for this to be launched."""
        following = self.collectives[self.next + 1 : self.next + 2]
        return self.side > self.main and not (following and self.missing[following[0]] == 1)

    def _launched(self, i: int) -> None:
        self.order.append(i)
        if self.gathered:
            for other in () if self.is_collective[i] else self.needs[i]:
                self.ahead -= self.gathered.pop(other, 0)
        for other in self.readers[i]:
            self.missing[other] -= 1
            if not self.missing[other] and not self.is_collective[other]:
                self._note_launched(other)

    def _note_launched(self, i: int) -> None:
        """Note that everything that a node of the main stream needs has been launched."""
        if self.is_collective[i]:
            return
        if self.home[i] > self.next + EARLY:
            heapq.heappush(self.held, (self.home[i], i))
        else:
            self._make_ready(i)

    def _make_ready(self, i: int) -> None:
        """Let the node run from now on, or as soon as a collective that it needs is over."""
        # Updates only fill gaps; all else is as urgent as the collectives soon to come. Beside the gradients of earlier
        # layers, on a stream of their own, they take more from products than they save: with 8 multiprocessors for them
        # steps of three networks took 0.1 to 0.7 ms longer on two H100s.
        last = len(self.collectives)
        rank = last + 1 if self.facts.changes[i] else min(self.goal[i], self.next + self.patience)
        ready = self.over[i] = max((self.over[k] for k in self.needs[i]), default=0.0)
        if self.facts.is_view[i]:
            ready = 0.0
        if ready <= self.main:
            heapq.heappush(self.able, self._sort_in(ready, rank, i))
        else:
            heapq.heappush(self.stalled, (ready, rank, i))

    def _sort_in(self, ready: float, rank: int, i: int) -> tuple[int, float, int]:
        """Sort a node in among those that may run: updates by the time of their sums, which may take longer than
        estimated."""
        return rank, ready if self.facts.changes[i] else 0.0, i
