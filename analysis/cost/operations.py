"""Counts the floating-point operations of a step, those of its matrix products, as the users of large networks do."""

from __future__ import annotations

from typing import NamedTuple

from mspc.analysis.cost.kinds import share_of_scores
from mspc.analysis.cost.nodes import work_of
from mspc.ir.graph import Graph, Node


class Operations(NamedTuple):
    """model: what the network and its gradients ask for. hardware: with what is recomputed."""

    model: float = 0.0
    hardware: float = 0.0

    def __add__(self, other: object) -> Operations:  # type: ignore[override]  # never a plain tuple
        """Of two things together."""
        assert isinstance(other, Operations)
        return Operations(self.model + other.model, self.hardware + other.hardware)

    def times(self, count: int) -> Operations:
        """Of so many runs."""
        return Operations(self.model * count, self.hardware * count)


def operations_of(graph: Graph, seen: bool = False) -> Operations:
    """The operations of a step of a graph: of loops those of all turns, of one turn where nobody has counted them
    ahead, and of branches those of the longest. seen: attention counts with the pairs that are not hidden alone."""
    return _inside(graph, {}, seen)


def _inside(graph: Graph, known: dict[Graph, Operations], seen: bool) -> Operations:
    if graph not in known:
        known[graph] = sum((_of_node(node, known, seen) for node in graph.nodes), Operations())
    return known[graph]


def _of_node(node: Node, known: dict[Graph, Operations], seen: bool) -> Operations:
    from mspc.ops.control.regions import (
        ONCE,
        If,  # late: most programs have no regions
    )

    if "unused" in node.attrs:
        return Operations()
    own = work_of(node)
    if own and seen:
        own *= share_of_scores(node)
    found = [Operations(0.0 if node.attrs.get("recomputed") else own, own)] if own else []
    inner = [_inside(region, known, seen).times(ONCE.inside(node, i).count) for i, region in enumerate(node.regions)]
    return max(inner) if isinstance(node.op, If) else sum(found + inner, Operations())
