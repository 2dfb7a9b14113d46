"""Layouts of all forward operators at once: the cheapest plan of a step, or one whose distance to it is known."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from dataclasses import dataclass
from itertools import permutations
from typing import cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Parameter, element_layouts
from mspc.ir.layout import common_mesh
from mspc.ops.op import Op
from mspc.passes.search.elimination import LARGEST, Assignment, Elimination, Factor, OutOfTime
from mspc.passes.search.model import Model
from mspc.passes.search.terms import Terms
from mspc.passes.sharding.layout_search import Search

SOURCE = "search"
"""Where a layout came from, in words."""
FAST = 1 << 16
"""Elements of a table in recursive programming, which may miss the best."""
QUICK = 1 << 10
"""The same where time may run out."""
PRICES, DEARER, DEAREST = 14, 32, 1e9
"""How many prices of memory are tried, how they rise, and the highest."""
AXES = 3
"""Axes of a mesh at most: every one multiplies the ways to cut an operator."""


@dataclass(frozen=True)
class Found:
    """What a search found on one mesh: bytes that a rank sends in a step, and the least that any plan there sends."""

    mesh: tuple[int, ...]
    assignment: Assignment


def mesh_of(search: Search) -> tuple[int, ...]:
    """The mesh that layouts are looked for on: the one that is asked for, else the prime factors of the number of
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


def cheapest_within(model: Model, limit: int, largest: int, seconds: int = 0) -> Assignment:
    """The cheapest assignment whose memory is within a limit of bytes, 0 for none; after some seconds, where they are
    not 0, the best that was found, and at least one.

    Memory gets a price, which is raised until it suffices and then brought as far down as it may be (Lagrange's
    multiplier); every price proves a bound (Everett 1963).

    Raises:
        MspcError: no assignment that a price leads to is within the limit.
    """
    sizes = [variable.size for variable in model.variables]
    deadline = time.monotonic() + seconds if seconds else math.inf
    plain = Elimination(sizes, model.factors, largest)
    first = _solved(sizes, model.factors, largest, deadline)
    if not limit or _held(model, first) <= limit:
        return first
    low, high = 0.0, 0.0
    best, bound, least = None, first.bound, _held(model, first)
    for step in range(PRICES):
        if best is not None and time.monotonic() > deadline:
            break
        price = high * DEARER or 1e-3 if best is None else math.sqrt(max(low, high / DEARER**2) * high)
        priced = [Factor(f.variables, f.table * price) for f in model.memory]
        found = _solved(sizes, [*model.factors, *priced], largest, deadline)
        held, cost = _held(model, found), plain.cost(found.values)
        bound, least = max(bound, found.bound - price * limit), min(least, held)
        if held <= limit:
            high = price
            if best is None or cost < best[0]:
                best = cost, found.values
        elif best is None:
            high = price
            if step == PRICES - 1 or price > DEAREST:
                break
        else:
            low = price
    if best is None:
        raise MspcError(
            f"no plan that was found needs at most {limit} bytes of memory on a rank: the least is {math.ceil(least)}",
            notes=["take more ranks, recompute cells, or allow more memory"],
        )
    return Assignment(best[1], best[0], min(bound, best[0]))


def _solved(sizes: list[int], factors: list[Factor], largest: int, deadline: float) -> Assignment:
    """The cheapest assignment, or where there is a deadline and it comes too soon what small tables find."""
    if deadline == math.inf:
        return Elimination(sizes, factors, largest).solve()
    quick = Elimination(sizes, factors, QUICK).solve()
    with contextlib.suppress(OutOfTime):
        return Elimination(sizes, factors, largest, deadline).solve()
    return quick


def _held(model: Model, assignment: Assignment) -> float:
    return sum(float(f.table[tuple(assignment.values[v] for v in f.variables)]) for f in model.memory)


def place_forward(search: Search) -> Found:
    """Give every forward operator without a layout, and every parameter that it reads, what the search finds."""
    mesh = mesh_of(search)
    model = Model(search, mesh)
    largest = FAST if search.graph.attrs.get("search_mode") == "recursive_programming" else LARGEST
    terms = Terms.of(search.graph.attrs)
    assignment = cheapest_within(model, terms.memory, largest, terms.seconds)
    chosen = {value: model.variables[v] for value, v in model.of.items()}
    for value, variable in chosen.items():
        if isinstance(value, Parameter) and value.layout is None:
            number = variable.outputs[0][assignment.values[model.of[value]]]
            value.layout = model.layout(value, int(number))
    for node in search.graph.nodes:
        if node.phase != "forward":
            continue
        if search.rules[node] is None:
            search.structure([node])
        elif node.in_layouts is None and cast(Op, node.op).operandwise:
            search.take_operandwise(node, SOURCE)
        elif node.in_layouts is None:
            search.take(node, chosen[node].choices[assignment.values[model.of[node]]], SOURCE)
    return Found(mesh, assignment)
