"""Search for the layouts of all forward operators together: the cheapest plan of a step, or a plan with a known gap to
it. A plan can also be applied to another trace of the same network."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any, cast

from mspc.ir.graph import Graph, Node, Parameter, Value, element_layouts
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import common_mesh
from mspc.ops.control.structural import is_constraint
from mspc.ops.op import Op
from mspc.passes.autodiff.recompute import Recompute
from mspc.passes.lib.choices import MILLION, Terms, primes
from mspc.passes.lib.layout_search import PlanTotal, Search, State, restore, state_of, take_form
from mspc.passes.lib.loop_layouts import settle_loops, step_bytes
from mspc.passes.lib.propagation import shard_batch, spread
from mspc.passes.lib.recomputation import mark_cells
from mspc.passes.sharding.propagate_sharding import begun, finish
from mspc.search.layouts.within_memory import QUICK, Limited
from mspc.search.model.memory import BEGIN, MemoryModel
from mspc.search.model.model import NEVER, CostModel
from mspc.search.solver.elimination import LARGEST, Assignment, Elimination, OutOfTime, Sums

SMALL = 12
"""Maximum number of operators of a network for which plans near the optimum are tried."""
TABLE = 1 << 14
"""Maximum number of elements of a table."""
FEWEST, WORK = 20, 2400
"""Number of plans that are tried, in order of cost: at least `FEWEST` of either kind, or as many as have `WORK`
operators together."""
GRADIENT_BYTES = "back"
"""Kind of the cost factors that count the bytes sent for gradients."""
DIGITS = 2
"""Decimal places to which costs in bytes are rounded: plans of equal cost are mostly one plan on exchanged axes."""

Values = tuple[int, ...]


def nearby(model: CostModel) -> list[tuple[float, Values]]:
    """Return (bytes sent before the gradients, assignment) of plans near the optimum; [] for a large network. First
    come plans near the optimum of all costs, then plans near the optimum without costs of gradients, each by increasing
    cost."""
    sizes = [variable.size for variable in model.variables]
    decided = sorted({model.of[node] for node in model.nodes if sizes[model.of[node]] > 1})
    if len(decided) > SMALL:
        return []
    forward = [factor for factor, (kind, _) in zip(model.factors, model.about, strict=True) if kind != GRADIENT_BYTES]
    ahead, found = Sums(forward), dict[Values, float]()
    most = max(FEWEST, WORK // len(model.search.graph.nodes))
    for factors, first in ((model.factors, 1), (forward, 0)):  # the best plan of the model is known, and skipped
        plans: dict[float, Values] = {}
        problem = Elimination(sizes, factors, TABLE)
        for variable in decided:
            for each in problem.min_marginals(variable):
                if each.cost < NEVER / 2:
                    plans.setdefault(round(each.cost, DIGITS), each.values)
        for cost in sorted(plans)[first : most + first]:
            found.setdefault(plans[cost], ahead.total(plans[cost]))
    return [(cost, values) for values, cost in found.items()]


def apply_assignment(search: Search, model: CostModel, values: Sequence[int], source: str) -> None:
    """Apply an assignment to every forward operator without a layout and to the parameters that it reads."""
    for value, v in model.of.items():
        if isinstance(value, Parameter) and value.layout is None:
            value.layout = model.layout(value, int(model.variables[v].outputs[0][values[v]]))
    for node in search.graph.nodes:
        if node.phase != "forward":
            continue
        if search.rules[node] is None:
            search.structure([node])
        elif node.in_layouts is None and cast(Op, node.op).operandwise:
            search.take_operandwise(node, source)
        elif node.in_layouts is None and node not in model.of:  # values that a loop saves for gradients
            search.choose(node, source)
        elif node.in_layouts is None:
            v = model.of[node]
            search.take(node, model.variables[v].choices[values[v]], source)


SOURCE = "search"
"""Origin of a layout, in words."""
FAST = 1 << 16
"""Maximum number of elements of a table for recursive programming, which may miss the optimum."""
AXES = 3
"""Maximum number of mesh axes: each multiplies the number of choices of an operator."""


@dataclass(frozen=True)
class FoundPlan:
    """Result of a search on one mesh. assignment: with the bytes that a rank sends in a step and a lower bound for all
    plans on the mesh. model: the problem that was solved."""

    mesh: tuple[int, ...]
    assignment: Assignment
    model: CostModel


def mesh_of(search: Search) -> tuple[int, ...]:
    """Return the mesh for the search. Without a configured mesh, it consists of the prime factors of the number of
    ranks, of which the smallest are merged until there are at most `AXES`. The order of axes is the one that fits most
    layouts of configured operators and inputs. With several hosts, every axis is either within a host or between
    hosts."""
    terms = Terms.of(search.graph.attrs)
    if terms.axes:
        return terms.axes
    hosts = terms.hosts if terms.network and search.ranks % max(1, terms.hosts) == 0 else search.ranks
    parts = [list(primes((number,))) for number in (search.ranks // hosts, hosts)]
    while len(parts[0]) + len(parts[1]) > AXES:
        longer = max(parts, key=len)
        longer[:] = sorted([longer[0] * longer[1], *longer[2:]])
    given = Counter(
        layout.mesh
        for value in (*search.graph.parameters, *search.graph.nodes)
        for layout in (*element_layouts(value.layout), *((isinstance(value, Node) and value.in_layouts) or ()))
        if layout is not None
    )
    orders = [(*outer, *inner) for outer in _orders(parts[0]) for inner in _orders(parts[1])]
    return max(orders, key=lambda mesh: sum(n for own, n in given.items() if common_mesh(mesh, own) == mesh)) or (1,)


def _orders(sizes: list[int]) -> list[tuple[int, ...]]:
    return sorted(set(permutations(sizes)), reverse=True)


def cheapest(model: CostModel, largest: int, seconds: float = 0) -> Assignment:
    """Return the cheapest assignment, or that of small tables if the search takes more than `seconds` (0 for no
    limit)."""
    sizes = [variable.size for variable in model.variables]
    if not seconds:
        return Elimination(sizes, model.factors, largest).solve()
    quick = Elimination(sizes, model.factors, QUICK).solve()
    with contextlib.suppress(OutOfTime):
        return Elimination(sizes, model.factors, largest, time.monotonic() + seconds).solve()
    return quick


def limited(model: CostModel, memory: MemoryModel, largest: int, seconds: float = 0, proves: bool = True) -> Limited:
    """Return the problem of a model with a memory limit; see `Limited`."""
    sizes = [variable.size for variable in model.variables]
    memory.add_moment(Elimination(sizes, model.factors, QUICK).solve().values, at=BEGIN)
    return Limited(sizes, model.factors, memory, largest, seconds, proves)


def place_forward(search: Search) -> FoundPlan:
    """Search layouts for all forward operators without one, and for the parameters that they read, and apply them."""
    mesh = mesh_of(search)
    model = CostModel(search, mesh)
    largest = FAST if search.graph.attrs.get("search_mode") == "recursive_programming" else LARGEST
    terms = Terms.of(search.graph.attrs)
    memory = MemoryModel(model) if terms.memory else None
    if memory is None:
        assignment = cheapest(model, largest, terms.milliseconds / 1000)
    else:
        assignment = limited(model, memory, largest, terms.milliseconds / 1000).solve(terms.memory)
    if memory is not None:
        search.graph.attrs["search_held"] = round(memory.peak(assignment.values))
    apply_assignment(search, model, assignment.values, SOURCE)
    if memory is not None:
        known = set(search.graph.nodes)
        gathered = set(memory.regathered_parameters(assignment.values))
        _save_memory(search.graph, memory, assignment.values, gathered)
        added = [node for node in search.graph.nodes if node not in known]
        if added:
            search.include(added)
    return FoundPlan(mesh, assignment, model)


def _save_memory(graph: Graph, memory: MemoryModel, values: Sequence[int], gathered: Collection[Value]) -> None:
    """Mark the operators that read parameters that are gathered again, and recompute the chosen cells in the backward
    graph."""
    for node in graph.nodes:
        if node.phase == "forward" and any(value in gathered for value in node.inputs):
            node.attrs["gathers_again"] = True
    cells = memory.recomputed(values)
    if cells:
        mark_cells(graph, cells)
        Recompute().run(graph)


def place(memory: MemoryModel, graph: Graph, values: Sequence[int]) -> None:
    """Apply a complete assignment to a graph, and recompute its cells. memory: of a model of the same network at the
    same stage of the pipeline."""
    model = memory.model
    own = dict(zip(model.search.graph.nodes, graph.nodes, strict=True))
    stored = dict(zip(model.search.graph.parameters, graph.parameters, strict=True))
    for value, variable in model.of.items():
        decided = model.variables[variable]
        if isinstance(value, Parameter) and value.layout is None:
            stored[value].layout = model.layout(value, int(decided.outputs[0][values[variable]]))
        elif isinstance(value, Node) and value.in_layouts is None:
            node, choice = own[value], decided.choices[values[variable]]
            take_form(graph, node, choice.inputs)
            node.in_layouts, node.layout = choice.inputs, choice.layout(node.type)
            node.attrs["strategy_from"] = SOURCE
    gathered = {stored[parameter] for parameter in memory.regathered_parameters(values)}
    _save_memory(graph, memory, values, gathered)
    graph.attrs.pop("search_mode", None)
    graph.attrs["search_held"] = round(memory.peak(values))


SAME_AS_PREDICTED = 1.001
"""Ratio to the predicted bytes, or work, up to which they count as equal."""
MIN_GAIN = 1.0
"""Minimum difference in bytes between plans."""
FEW = 400
"""Maximum number of forward operators for which the usual plans are always tried."""

Usual = Callable[[Search, list[Node]], None]


def assign_cheapest_layouts(graph: Graph) -> None:
    """Assign layouts to all nodes and parameters of a graph, and record their cost and its proven bound in the header.
    Raise MspcError if no plan is within the memory limit, or an operator cannot be sharded as requested."""
    search, forward = begun(graph)
    terms = Terms.of(graph.attrs)
    timed = bool(terms.latency or terms.touch)  # `mspc search` compares times of complete programs
    alone = timed or bool(terms.memory or terms.mesh) or any(is_constraint(node) for node in graph.nodes)
    before = _Decisions.of((*graph.nodes, *graph.parameters))
    configured = any(node.in_layouts is not None and search.rules[node] is not None for node in forward)
    usual: tuple[Usual, ...] = (spread,) if configured else (spread, shard_batch)
    placed = place_forward(search)
    found = placed.assignment
    total = _finished(search, forward)
    as_foreseen = abs(total.nbytes - found.cost) <= (SAME_AS_PREDICTED - 1) * found.cost + MIN_GAIN
    if timed or terms.memory:  # its costs include more than bytes
        share = found.proven / max(found.cost, MIN_GAIN)
    else:
        share = _proven(found.proven, total.nbytes)
    if not alone and (len(forward) <= FEW or not as_foreseen):
        near = nearby(placed.model) if search.trains else ()
        plans = [
            *((0.0, plan) for plan in usual),
            *((ahead, partial(_apply, placed, values)) for ahead, values in near),
        ]
        better = _cheaper(search, forward, before, total, plans)
        if better is not total:
            total, share = better, 0.0  # the best plan is not one that the search knows
    graph.attrs["search_cost"] = round(total.nbytes)
    if share:
        graph.attrs["search_open"] = round((1 - share) * MILLION)
    # If gradients are redistributed otherwise, no bound is proven.
    if share and not (timed or terms.memory or search.trains or placed.model.counts_twice):
        graph.attrs["search_bound"] = round(total.nbytes * share)


@dataclass(frozen=True)
class _Decisions:
    """Snapshot of the decisions on some values: layouts, forms of operators, and their origins."""

    values: Sequence[Value]
    states: Sequence[State]
    sources: Sequence[Any]

    @classmethod
    def of(cls, values: Sequence[Value]) -> _Decisions:
        sources = [value.attrs.get("strategy_from") if isinstance(value, Node) else None for value in values]
        return cls(values, [state_of(value) for value in values], sources)

    def restore(self) -> None:
        """Restore the decisions."""
        restore(self.values, self.states)
        for value, source in zip(self.values, self.sources, strict=True):
            if isinstance(value, Node):
                value.attrs.pop("strategy_from", None)
                if source is not None:
                    value.attrs["strategy_from"] = source


def _apply(placed: FoundPlan, values: Sequence[int], search: Search, forward: list[Node]) -> None:
    apply_assignment(search, placed.model, values, SOURCE)


def _cheaper(
    search: Search, forward: list[Node], before: _Decisions, total: PlanTotal, plans: Iterable[tuple[float, Usual]]
) -> PlanTotal:
    """Apply the cheapest of some plans to the graph and return its total. total: of the current plan. plans: each with
    the bytes that it sends before the gradients."""
    for ahead, give in plans:
        if ahead >= total.nbytes:
            continue  # even if its gradients cost nothing
        best = _Decisions.of(before.values)
        before.restore()
        search.wanted = {}
        search.replicated = {}
        give(search, forward)
        other = _finished(search, forward)
        if other.nbytes < total.nbytes - MIN_GAIN / 2:
            total = other
        else:
            best.restore()
    return total


def _finished(search: Search, forward: list[Node]) -> PlanTotal:
    """Place everything that follows from the layouts of the forward graph, and return the total cost. Values carried by
    loops of gradients get the layouts of least cost."""
    if not search.is_open:
        return finish(search, forward)
    totals: list[PlanTotal] = []
    settle_loops(search.graph, lambda: totals.append(finish(search, forward)))
    return replace(totals[-1], nbytes=step_bytes(search.graph))


def _proven(bound: float, nbytes: float) -> float:
    """Return the proven lower bound of all plans as a share of this plan's bytes; 0 if unknown, because the gradients
    are redistributed at a lower cost than the model assumes."""
    if nbytes < bound / SAME_AS_PREDICTED - MIN_GAIN:
        return 0.0
    return min(1.0, bound / nbytes) if nbytes >= MIN_GAIN else 1.0
