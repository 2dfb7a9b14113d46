"""Finds layouts of all forward operators at once, the cheapest plan of a step or one whose distance to it is known, and
places a plan on a graph of the same network that was read again."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from itertools import permutations

from mspc.ir.graph import Graph, Node, Parameter, element_layouts
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import common_mesh
from mspc.passes.autodiff.recompute import Recompute
from mspc.passes.lib.layout_search import Search, take_form
from mspc.passes.lib.plan_header import Terms
from mspc.passes.lib.recomputation import mark_cells
from mspc.search.layouts.nearby import take_assignment
from mspc.search.layouts.within_memory import QUICK, Limited
from mspc.search.model.memory import BEGIN, MemoryModel
from mspc.search.model.model import CostModel
from mspc.search.solver.elimination import LARGEST, Assignment, Elimination, OutOfTime

SOURCE = "search"
"""Where a layout came from, in words."""
FAST = 1 << 16
"""Elements of a table in recursive programming, which may miss the best."""
AXES = 3
"""Axes of a mesh at most: every one multiplies the choices for an operator."""


@dataclass(frozen=True)
class FoundPlan:
    """What a search found on one mesh: bytes that a rank sends in a step, and the least that any plan there sends.
    model: the problem that it has solved."""

    mesh: tuple[int, ...]
    assignment: Assignment
    model: CostModel


def mesh_of(search: Search) -> tuple[int, ...]:
    """The mesh that layouts are looked for on: the one that the settings name, else the prime factors of the number of
    ranks, the smallest multiplied together until there are `AXES` at most, in the order that most layouts of configured
    operators and inputs fit. Of several hosts no axis is partly within one."""
    terms = Terms.of(search.graph.attrs)
    if terms.axes:
        return terms.axes
    hosts = terms.hosts if terms.network and search.ranks % max(1, terms.hosts) == 0 else search.ranks
    parts = [_prime_factors(search.ranks // hosts), _prime_factors(hosts)]
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


def _prime_factors(number: int) -> list[int]:
    """In ascending order; none of 1."""
    found: list[int] = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


def _orders(sizes: list[int]) -> list[tuple[int, ...]]:
    return sorted(set(permutations(sizes)), reverse=True)


def cheapest(model: CostModel, largest: int, seconds: float = 0) -> Assignment:
    """The cheapest assignment; after some seconds, where they are not 0, what small tables find."""
    sizes = [variable.size for variable in model.variables]
    if not seconds:
        return Elimination(sizes, model.factors, largest).solve()
    quick = Elimination(sizes, model.factors, QUICK).solve()
    with contextlib.suppress(OutOfTime):
        return Elimination(sizes, model.factors, largest, time.monotonic() + seconds).solve()
    return quick


def limited(model: CostModel, memory: MemoryModel, largest: int, seconds: float = 0, proves: bool = True) -> Limited:
    """The problem of a model within a limit of memory; see `Limited`."""
    sizes = [variable.size for variable in model.variables]
    memory.add_moment(Elimination(sizes, model.factors, QUICK).solve().values, at=BEGIN)
    return Limited(sizes, model.factors, memory, largest, seconds, proves)


def place_forward(search: Search) -> FoundPlan:
    """Give every forward operator without a layout, and every parameter that it reads, what the search finds."""
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
    take_assignment(search, model, assignment.values, SOURCE)
    if memory is not None:
        _save_memory(search, memory, assignment)
    return FoundPlan(mesh, assignment, model)


def _save_memory(search: Search, memory: MemoryModel, assignment: Assignment) -> None:
    """Mark what is computed or gathered again, and compute the cells again in the backward graph."""
    graph = search.graph
    gathered = set(memory.gathered_again(assignment.values))
    for node in graph.nodes:
        if node.phase == "forward" and any(value in gathered for value in node.inputs):
            node.attrs["gathers_again"] = True
    cells = memory.recomputed(assignment.values)
    if cells:
        known = set(graph.nodes)
        mark_cells(graph, cells)
        Recompute().run(graph)
        search.include(node for node in graph.nodes if node not in known)


def place(memory: MemoryModel, graph: Graph, values: Sequence[int]) -> None:
    """Give the operators and parameters of a graph what an assignment says, and compute again what it does; nothing is
    left to search. memory: of the model of another graph of the same network, at the same stage."""
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
    gathered = {stored[parameter] for parameter in memory.gathered_again(values)}
    for node in graph.nodes:
        if node.phase == "forward" and any(value in gathered for value in node.inputs):
            node.attrs["gathers_again"] = True
    cells = memory.recomputed(values)
    if cells:
        mark_cells(graph, cells)
        Recompute().run(graph)
    graph.attrs.pop("search_mode", None)
    graph.attrs["search_held"] = round(memory.peak(values))
