"""Tells ranks apart by what they send and how long they take, without a program for each: what ranks differ in are the
parts of a few places, as pieces of a causal attention and the exchanges between them."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import seconds, sent_bytes
from mspc.compiler.driver import Compiled
from mspc.compiler.rank_graphs import RankPlaces
from mspc.compiler.sent_bytes import LOOKED_AT, sent_by_each, sent_by_ranks
from mspc.ir.graph import Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import nodes_with_times
from mspc.passes.lib.choices import is_released
from mspc.passes.lib.ranks import RankElement, neighbours, operand_type
from mspc.passes.per_rank.slice_to_rank import Shared, add_on_rank


@dataclass(frozen=True)
class RankLoads:
    """most: bytes that the rank `rank` sends in a step, the first of those that send the most. mean: over all ranks.
    slowest: the first rank whose operators and collectives take the longest, one by one."""

    most: float
    rank: int
    mean: float
    slowest: int


def rank_loads(compiled: Compiled, machine: Machine) -> RankLoads:
    """Of a compiled program. Raises MspcError where no rank's graph can be made."""
    if compiled.config.pipeline_stages > 1:  # stages differ in more than places
        sent = sent_by_ranks(compiled)
        return RankLoads(sent.most, sent.rank, sent.mean, sent.rank)
    ranks = range(min(LOOKED_AT, compiled.config.all_ranks))
    parts = _Parts(compiled.rank_graphs.places, machine.under(compiled.graph.attrs))
    own = {rank: parts.on(rank) for rank in neighbours(len(ranks))}
    if len(set(own.values())) == 1:  # along no axis a neighbour differs
        own = dict.fromkeys(ranks, own[0])
    own |= {rank: parts.on(rank) for rank in ranks if rank not in own}
    slowest = max(ranks, key=lambda rank: (own[rank][1], -rank))
    graph = compiled.rank_graph(slowest)
    base = sum(sent_bytes(node) * times.count for node, times in nodes_with_times(graph)) - own[slowest][0]
    sent_by = [base + own[rank][0] for rank in ranks]
    most = max(sent_by)
    return RankLoads(most, sent_by.index(most), sum(sent_by) / len(sent_by), slowest)


def most_sent(compiled: Compiled, stages: Iterable[int], machine: Machine) -> float:
    """Bytes that the rank of some stages sends that sends the most in a step. Where ranks that are next to each other
    send alike, the first one of each stage is looked at. Raises MspcError as above."""
    count = compiled.config.ranks
    parts = _Parts(compiled.rank_graphs.places, machine.under(compiled.graph.attrs))
    alike = len({parts.on(rank)[0] for rank in neighbours(count)}) == 1
    looked = range(1 if alike else min(LOOKED_AT, count))
    return max(sent_by_each(compiled, [stage * count + rank for stage in stages for rank in looked]))


class _Parts:
    """What the parts that depend on the rank come to."""

    def __init__(self, places: RankPlaces, machine: Machine) -> None:
        self.machine = machine
        self.positions = places.positions
        differing = set(places.positions.differing())
        self.nodes: dict[int, list[tuple[Node, int]]] = {}
        self.operands: dict[Value, Value] = {}
        for node in places.graph.nodes:
            number = places.positions.of_node.get(node)
            if number in differing and not is_released(node):
                self.nodes.setdefault(number, []).append((node, places.times.get(node, 1)))

    def on(self, rank: int) -> tuple[float, float]:
        """(bytes that a rank sends for them, seconds that they take one by one) in a step."""
        nbytes = time = 0.0
        shared: Shared = {}
        for number, nodes in self.nodes.items():
            part = self.positions.all[number].on(rank)
            # What operators share runs once: there each of them is looked at.
            shares = any(made.shared is not None for made in part.nodes)
            each = nodes if shares else [(nodes[0][0], sum(times for _, times in nodes))]
            for node, times in each:
                sent, took = self._of(node, part, shared)
                nbytes += times * sent
                time += times * took
        return nbytes, time

    def _of(self, node: Node, part: RankElement, shared: Shared) -> tuple[float, float]:
        made: list[Node] = []
        add_on_rank(made, node, [self._operand(node, i) for i in range(len(node.inputs))], part, shared)
        run = [each for each in made if not each.op.is_view]
        return sum(map(sent_bytes, run)), sum(seconds(each, self.machine) for each in run)

    def _operand(self, node: Node, index: int) -> Value:
        """What stands for an operand on any rank, the same one for all that read it."""
        return self.operands.setdefault(node.inputs[index], Value(operand_type(node, index)))
