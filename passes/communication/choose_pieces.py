"""Chooses the collectives that go in pieces beside the matmuls next to them, for GPUs, and their number of pieces.

Input:  `%1 = AllGather(%x)`, `%2 = MatMul(%1, %w)` in the graph of all ranks
Output: `%1 = AllGather(%x) {pieces: 4}`, which `send_in_pieces` carries out on every rank

A layer with matmuls that are sharded over a group of ranks waits for the gathers before them and for the sums after
them; in the gradients other matmuls fill most of that time. So pieces help collectives for which a rank would be idle
in the order of `schedule_communication`: this is looked up in the graph of rank 0, and the choice holds for all ranks.
Costs are those of `ONE_HOST`, as there. If pieces gain less than a share of the collective's time, nothing changes.

The header's `computation_communication_fusion_level` restricts it: 0 nowhere, 1 forward, 2 backward, 3 (as without it)
both.
"""

from __future__ import annotations

from mspc.analysis.cost.nodes import seconds
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather
from mspc.passes.base import GLOBAL, LOWERED, WHOLE, Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.communication.schedule_communication import ONE_HOST
from mspc.passes.lib.collective_order import sums_gradients
from mspc.passes.lib.collective_pieces import (
    PIECES,
    Gains,
    Users,
    best_pieces,
    divides,
    exposed_seconds,
    is_candidate,
    made_by_product,
    reading_products,
)
from mspc.passes.per_rank.slice_to_rank import SliceToRank

LEVEL = "computation_communication_fusion_level"
"""The header's attribute."""
NUMBERS = (2, 4, 8)
"""Numbers of pieces that are tried."""
MIN_GAIN = 0.1
"""The share of a collective's time that pieces must gain at least: less may as well be an error of the estimate."""
LONG = 3.0
"""How many times its start a collective takes at least for pieces to be looked at."""
_PHASES = {0: (), 1: ("forward",), 2: ("backward",), 3: ("forward", "backward")}


class ChoosePieces(Pass):
    """Mark collectives with the attribute `pieces`. number: of pieces for all that can have so many; 0 for the best
    number."""

    regions = WHOLE
    needs = (GLOBAL, LOWERED)
    number: int = 0

    def run(self, graph: Graph) -> bool:
        level = graph.attrs.get(LEVEL, 3)
        if level not in _PHASES:
            legal = ", ".join(map(str, _PHASES))
            raise MspcError(f"the header's {LEVEL} is {level!r}", notes=[f"it must be one of {legal}"])
        phases = _PHASES[level]
        fitting = filter(is_candidate, graph.all_nodes())
        candidates = [node for node in fitting if node.phase in phases and not sums_gradients(node)]
        if not candidates:
            return False
        for number, node in enumerate(candidates):
            node.attrs[PIECES] = number
        local, _ = SliceToRank().apply(graph)
        chosen = self._piece_counts(local)
        for number, node in enumerate(candidates):
            del node.attrs[PIECES]
            if number in chosen:
                node.attrs[PIECES] = chosen[number]
        return bool(chosen)

    def _piece_counts(self, local: Graph) -> dict[int, int]:
        """Return the number of pieces of candidates by the numbers of their nodes in a rank's graph."""
        found: dict[int, int] = {}
        machine = ONE_HOST.under(local.attrs)
        for graph in local.graphs():
            if not any(PIECES in node.attrs for node in graph.nodes):
                continue
            remove_dead(graph)
            users, results = graph.users(), set(graph.results)
            marked = {
                node: products for node in graph.nodes
                if PIECES in node.attrs and is_candidate(node) and (self.number or _takes_long(node))
                and (products := _products(node, users, results))
            }  # fmt: skip
            if not marked:
                continue
            gains = None if self.number else Gains(graph, exposed_seconds(graph, machine), machine)
            taken: set[Node] = set()  # products that are taken apart for another collective
            for node, products in marked.items():
                if not taken.isdisjoint(products):
                    continue
                if gains is None:
                    pieces = self.number if divides(node, self.number) else 0
                else:
                    pieces = best_pieces(gains, node, NUMBERS, MIN_GAIN * seconds(node, ONE_HOST))
                if pieces:
                    found[node.attrs[PIECES]] = pieces
                    taken.update(products)
        return found


def _takes_long(node: Node) -> bool:
    """Return whether a collective takes much longer than its start, which every piece has."""
    assert isinstance(node.op, Collective)
    return seconds(node, ONE_HOST) > LONG * ONE_HOST.collective_seconds(node.op.name, 0.0, node.op.ranks)


def _products(node: Node, users: Users, results: set[Value]) -> list[Node]:
    if isinstance(node.op, AllGather):
        return reading_products(node, users, results)[0]
    product, _ = made_by_product(node, users, results)
    return [] if product is None else [product]
