"""Gives every operator a sharding that the user left without one, and every parameter its slice.

Semi-automatic mode: forward operators without a strategy are cut along the batch (where that sends less, they follow
their neighbours). Automatic mode (sharding propagation): shardings spread from the configured operators and the data to
their neighbours, downstream first, each operator taking what costs the fewest bytes, or, where the header names a
`search_mode`, all operators are decided on together (`passes/search`); those of data parallel cells are cut along the
batch. In both modes a parameter is stored as its first reader needs it, configured readers first;
backward operators follow their operands, updates follow their parameter. Then backward operators are revisited for as
long as that saves bytes and costs no matrix work.

Input:  nodes with `in_layouts` where the user gave strategies. Output: all nodes and parameters with layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.constraint import is_constraint
from mspc.passes.base import Pass
from mspc.passes.needs import DIFFERENTIATED, KNOWN, WHOLE
from mspc.passes.sharding.backward_layouts import BackwardLayouts
from mspc.passes.sharding.choices import multiplies
from mspc.passes.sharding.constraints import release_constraints
from mspc.passes.sharding.forward_layouts import cut_asked, cut_batch, spread
from mspc.passes.sharding.givers import SHARD
from mspc.passes.sharding.layout_plans import State, Total, restore, state_of
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.parameter_layouts import store_parameters
from mspc.passes.sharding.traffic import work_of
from mspc.passes.sharding.update_layouts import wanted_by_updates

if TYPE_CHECKING:
    from mspc.passes.search.model import Model

SEARCHES = ("dynamic_programming", "recursive_programming")
"""What `search_mode` says where all operators are decided on together."""
AS_FORESEEN = 1.001
"""Up to this many times the bytes that a search has reckoned with, or work, counts as the same."""
LEAST = 1.0
"""Bytes that count."""
MILLION = 1_000_000
"""Into so many parts the sum that a search looks for the least of is divided, to say what may be saved of it."""
FEW = 400
"""Forward operators up to which the usual plans are always looked at."""


@dataclass(frozen=True)
class PropagateSharding(Pass):
    """Decide the layouts of all nodes and parameters."""

    needs = (KNOWN, WHOLE, DIFFERENTIATED)

    def run(self, graph: Graph) -> bool:
        search, forward = begun(graph)
        if not search.automatic:
            cut_batch(search, forward)
            _finish(search, forward)
            return True
        if graph.attrs.get("search_mode") in SEARCHES:
            _best(search, forward)
        else:
            spread(search, forward)
            _finish(search, forward)
        return True


def begun(graph: Graph) -> tuple[Search, list[Node]]:
    """The search for a graph, and its forward nodes, with all that is decided before anything is looked for."""
    search = Search(graph)
    for node in graph.nodes:
        if node.in_layouts is not None and "strategy_from" not in node.attrs:
            node.attrs["strategy_from"] = SHARD
    forward = [node for node in graph.nodes if node.phase == "forward"]
    search.structure(forward)
    if search.automatic:
        cut_asked(search, forward)
    return search, forward


def _finish(search: Search, forward: list[Node]) -> Total:
    """Place all that follows from the layouts of the forward graph, and say what the whole costs."""
    graph = search.graph
    store_parameters(search, forward)
    if release_constraints(graph):
        search.reread()
    search.wanted = wanted_by_updates(graph, search.rules, search.ranks)
    backward = BackwardLayouts(search)
    unplaced = {node for node in forward if search.rules.get(node) is None and node.layout is None}  # show gradients
    nodes = [node for node in graph.nodes if node.phase != "forward" or node in unplaced]
    backward.place(nodes)
    total = backward.total(nodes)
    products = [node for node in forward if (rule := search.rules.get(node)) is not None and multiplies(rule, node)]
    work = sum(work_of(node, search.rules[node]) for node in products)
    return Total(total.nbytes, total.moves, total.work + work)


def _best(search: Search, forward: list[Node]) -> None:
    """What the search over all operators finds, or one of the usual plans where that sends less: what spreads from
    configured operators, where there are none the batch cut, and of small networks plans near the search's. The search
    takes gradients to go the way of their values back, which they need not, and every product to be cut over all ranks.
    """
    from mspc.passes.search.terms import Terms
    from mspc.passes.search.whole_graph import place_forward  # late: most compiles search for nothing

    graph = search.graph
    values = (*graph.nodes, *graph.parameters)
    begin, sources = [state_of(value) for value in values], [_source_of(value) for value in values]
    configured = any(node.in_layouts is not None and search.rules[node] is not None for node in forward)
    terms = Terms.of(graph.attrs)
    timed = bool(terms.latency or terms.touch)  # `mspc search` compares times of whole programs
    alone = timed or bool(terms.memory or terms.mesh) or any(is_constraint(node) for node in graph.nodes)
    placed = place_forward(search)
    found = placed.assignment
    total = _finish(search, forward)
    as_foreseen = abs(total.nbytes - found.cost) <= (AS_FORESEEN - 1) * found.cost + LEAST
    if timed or terms.memory:  # what it has reckoned with is more than bytes
        share = found.proven / max(found.cost, LEAST)
    else:
        share = _proven(found.proven, total.nbytes)
    if not alone and (len(forward) <= FEW or not as_foreseen):
        usual_plans = [(0.0, each) for each in ((spread,) if configured else (spread, cut_batch))]
        for ahead, usual in (*usual_plans, *(_nearby(placed.model) if search.trains else ())):
            if ahead >= total.nbytes:
                continue  # whatever its gradients cost
            states, found_sources = [state_of(value) for value in values], [_source_of(value) for value in values]
            _put_back(values, begin, sources)
            search.wanted = {}
            search.whole = {}
            usual(search, forward)
            other = _finish(search, forward)
            if other.nbytes < total.nbytes - LEAST / 2:
                total, share = other, 0.0  # the best is none of the plans that the search knows
            else:
                _put_back(values, states, found_sources)
    graph.attrs["search_cost"] = round(total.nbytes)
    if share:
        graph.attrs["search_open"] = round((1 - share) * MILLION)
    # Of gradients that go other ways nothing is proved.
    if share and not (timed or terms.memory or search.trains or placed.model.counts_twice):
        graph.attrs["search_bound"] = round(total.nbytes * share)


def _nearby(model: Model) -> list[tuple[float, Callable[[Search, list[Node]], None]]]:
    """Plans near the best one: the bytes of each ahead of gradients, and what gives it to the forward operators."""
    from mspc.passes.search.nearby import nearby

    return [(ahead, partial(_take, model=model, values=values)) for ahead, values in nearby(model)]


def _take(search: Search, forward: list[Node], model: Model, values: Sequence[int]) -> None:
    from mspc.passes.search.nearby import take_assignment
    from mspc.passes.search.whole_graph import SOURCE

    take_assignment(search, model, values, SOURCE)


def _proven(bound: float, nbytes: float) -> float:
    """The share of the bytes of a plan that any plan of its kind sends at least; 0 where that is not known: gradients
    took a shorter way than the search knows."""
    if nbytes < bound / AS_FORESEEN - LEAST:
        return 0.0
    return min(1.0, bound / nbytes) if nbytes >= LEAST else 1.0


def _source_of(value: Value) -> Any:
    return value.attrs.get("strategy_from") if isinstance(value, Node) else None


def _put_back(values: Sequence[Value], states: Sequence[State], sources: Sequence[Any]) -> None:
    restore(values, states)
    for value, source in zip(values, sources, strict=True):
        if isinstance(value, Node):
            value.attrs.pop("strategy_from", None)
            if source is not None:
                value.attrs["strategy_from"] = source
