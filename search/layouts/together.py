"""Decides the layouts of all operators of a graph: the plan that is found, or a usual or near one that sends less.

Gradients may go another way than the search reckons with, which only the passes know that place them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import is_constraint
from mspc.passes.lib.layout_search import PlanTotal, Search, State, restore, state_of
from mspc.passes.lib.loop_layouts import settle_loops, step_bytes
from mspc.passes.lib.plan_header import MILLION, Terms
from mspc.passes.lib.propagation import shard_batch, spread
from mspc.passes.sharding.propagate_sharding import begun, finish
from mspc.search.layouts.cheapest import SOURCE, FoundPlan, place_forward
from mspc.search.layouts.nearby import nearby, take_assignment

AS_FORESEEN = 1.001
"""Up to this many times the bytes that a search has reckoned with, or work, counts as the same."""
LEAST = 1.0
"""Bytes that count."""
FEW = 400
"""Forward operators up to which the usual plans are always looked at."""

Usual = Callable[[Search, list[Node]], None]


def decide_together(graph: Graph) -> None:
    """Give all nodes and parameters of a graph layouts, and its header what they cost and what is proved of that.

    Raises:
        MspcError: no plan is within the limit of memory, or an operator cannot be sharded as asked.
    """
    search, forward = begun(graph)
    terms = Terms.of(graph.attrs)
    timed = bool(terms.latency or terms.touch)  # `mspc search` compares times of complete programs
    alone = timed or bool(terms.memory or terms.mesh) or any(is_constraint(node) for node in graph.nodes)
    before = _Decisions.of((*graph.nodes, *graph.parameters))
    candidates = _usual_plans(search, forward)
    placed = place_forward(search)
    found = placed.assignment
    total = _finished(search, forward)
    as_foreseen = abs(total.nbytes - found.cost) <= (AS_FORESEEN - 1) * found.cost + LEAST
    if timed or terms.memory:  # what it has reckoned with is more than bytes
        share = found.proven / max(found.cost, LEAST)
    else:
        share = _proven(found.proven, total.nbytes)
    if not alone and (len(forward) <= FEW or not as_foreseen):
        plans = [*((0.0, plan) for plan in candidates), *(_nearby(placed) if search.trains else ())]
        better = _cheaper(search, forward, before, total, plans)
        if better is not total:
            total, share = better, 0.0  # the best is none of the plans that the search knows
    graph.attrs["search_cost"] = round(total.nbytes)
    if share:
        graph.attrs["search_open"] = round((1 - share) * MILLION)
    # Of gradients that are redistributed otherwise nothing is proved.
    if share and not (timed or terms.memory or search.trains or placed.model.counts_twice):
        graph.attrs["search_bound"] = round(total.nbytes * share)


@dataclass(frozen=True)
class _Decisions:
    """What was decided of some values at one time: layouts and forms of operators, and where they came from."""

    values: Sequence[Value]
    states: Sequence[State]
    sources: Sequence[Any]

    @classmethod
    def of(cls, values: Sequence[Value]) -> _Decisions:
        sources = [value.attrs.get("strategy_from") if isinstance(value, Node) else None for value in values]
        return cls(values, [state_of(value) for value in values], sources)

    def put_back(self) -> None:
        """Give the values what they had."""
        restore(self.values, self.states)
        for value, source in zip(self.values, self.sources, strict=True):
            if isinstance(value, Node):
                value.attrs.pop("strategy_from", None)
                if source is not None:
                    value.attrs["strategy_from"] = source


def _usual_plans(search: Search, forward: list[Node]) -> tuple[Usual, ...]:
    """What spreads from configured operators; where there are none, what is sharded along the batch, too."""
    configured = any(node.in_layouts is not None and search.rules[node] is not None for node in forward)
    return (spread,) if configured else (spread, shard_batch)


def _nearby(placed: FoundPlan) -> Iterator[tuple[float, Usual]]:
    """Plans near the best one: the bytes of each ahead of gradients, and what gives it to the forward operators."""
    for ahead, values in nearby(placed.model):
        yield ahead, partial(_take, placed, values)


def _take(placed: FoundPlan, values: Sequence[int], search: Search, forward: list[Node]) -> None:
    take_assignment(search, placed.model, values, SOURCE)


def _cheaper(
    search: Search, forward: list[Node], before: _Decisions, total: PlanTotal, plans: Iterable[tuple[float, Usual]]
) -> PlanTotal:
    """What the cheapest of some plans costs, which the graph then has. total: what the one costs that it has now; the
    others come with the bytes that they send ahead of gradients."""
    for ahead, give in plans:
        if ahead >= total.nbytes:
            continue  # whatever its gradients cost
        best = _Decisions.of(before.values)
        before.put_back()
        search.wanted = {}
        search.replicated = {}
        give(search, forward)
        other = _finished(search, forward)
        if other.nbytes < total.nbytes - LEAST / 2:
            total = other
        else:
            best.put_back()
    return total


def _finished(search: Search, forward: list[Node]) -> PlanTotal:
    """Place all that follows from the layouts of the forward graph, and say what it all costs; what loops of gradients
    carry where it costs the least."""
    if not search.is_open:
        return finish(search, forward)
    totals: list[PlanTotal] = []
    settle_loops(search.graph, lambda: totals.append(finish(search, forward)))
    return replace(totals[-1], nbytes=step_bytes(search.graph))


def _proven(bound: float, nbytes: float) -> float:
    """The share of the bytes of a plan that any plan of its kind sends at least; 0 where that is not known: gradients
    took a shorter way than the search knows."""
    if nbytes < bound / AS_FORESEEN - LEAST:
        return 0.0
    return min(1.0, bound / nbytes) if nbytes >= LEAST else 1.0
