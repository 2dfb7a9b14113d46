"""Layouts of all forward operators at once: the cheapest plan of a step, or one whose distance to it is known."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Parameter, element_layouts
from mspc.ir.layout import common_mesh
from mspc.ops.op import Op
from mspc.passes.search.elimination import LARGEST, Assignment, Elimination, Factor, OutOfTime, Table
from mspc.passes.search.model import Model
from mspc.passes.search.terms import LEAST, Terms
from mspc.passes.sharding.layout_search import Search

SOURCE = "search"
"""Where a layout came from, in words."""
FAST = 1 << 16
"""Elements of a table in recursive programming, which may miss the best."""
QUICK = 1 << 10
"""The same where time may run out."""
PRICES, FIRST_PRICE, DEARER = 14, 1e-3, 32
"""How many prices of memory are tried, the first, and how they rise."""
CLOSE = 0.002
"""The share of a plan's cost that more prices need not save."""
HALVINGS = 12
"""How often the place is halved at which one assignment goes over into another."""
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
    first = _solved(sizes, model.factors, largest, deadline)
    if not limit or _held(model, first.values) <= limit:
        return first
    smallest = _solved(sizes, model.memory, largest, deadline)
    if limit == LEAST:
        return Assignment(smallest.values, Elimination(sizes, model.factors).cost(smallest.values), first.bound)
    if smallest.cost > limit:
        raise MspcError(
            f"no plan needs at most {limit} bytes of memory on a rank: the least is {math.ceil(smallest.bound)}",
            notes=["take more ranks, recompute cells, or allow more memory"],
        )
    return _Priced(model, limit, largest, deadline).search(first, smallest)


class _Priced:
    """The search for the cheapest assignment within a limit of memory, by prices for a byte."""

    def __init__(self, model: Model, limit: int, largest: int, deadline: float) -> None:
        self.model, self.limit, self.largest, self.deadline = model, limit, largest, deadline
        self.sizes = [variable.size for variable in model.variables]
        self.plain = Elimination(self.sizes, model.factors)

    def search(self, over: Assignment, within: Assignment) -> Assignment:
        """The best that is found between an assignment over the limit and one within it."""
        bound, cheap = over.bound, over.values
        best = self._mixed(cheap, within.values)
        low, high = 0.0, 0.0
        for _ in range(PRICES):
            cost = self.plain.cost(best)
            if cost - bound <= CLOSE * cost or time.monotonic() > self.deadline:
                break
            price = math.sqrt(max(low, high / DEARER**2) * high) if high else low * DEARER or FIRST_PRICE
            found = self._at(price)
            bound = max(bound, found.bound - price * self.limit)
            if _held(self.model, found.values) <= self.limit:
                high = price
                best = min(best, self._mixed(cheap, found.values), key=self.plain.cost)
            else:
                low, cheap = price, found.values
                best = min(best, self._mixed(cheap, best), key=self.plain.cost)
        cost = self.plain.cost(best)
        return Assignment(best, cost, min(bound, cost))

    def _at(self, price: float) -> Assignment:
        """The cheapest assignment where a byte of memory costs something."""
        tables: dict[int, Table] = {}
        for factor in self.model.memory:
            tables.setdefault(id(factor.table), factor.table * price)
        priced = [Factor(f.variables, tables[id(f.table)]) for f in self.model.memory]
        return _solved(self.sizes, [*self.model.factors, *priced], self.largest, self.deadline)

    def _mixed(self, over: Sequence[int], within: Sequence[int]) -> tuple[int, ...]:
        """Of two assignments as much of the one over the limit as fits, from the first operators or from the last."""
        best = tuple(within)
        for front in (True, False):
            low, high = 0, len(best)
            for _ in range(HALVINGS):
                middle = (low + high) // 2
                parts = (over, within) if front else (within, over)
                cut = middle if front else len(best) - middle
                mixed = (*parts[0][:cut], *parts[1][cut:])
                if _held(self.model, mixed) > self.limit:
                    high = middle
                    continue
                low = middle
                best = min(best, mixed, key=self.plain.cost)
        return best


def _solved(sizes: list[int], factors: list[Factor], largest: int, deadline: float) -> Assignment:
    """The cheapest assignment, or where there is a deadline and it comes too soon what small tables find."""
    if deadline == math.inf:
        return Elimination(sizes, factors, largest).solve()
    quick = Elimination(sizes, factors, QUICK).solve()
    with contextlib.suppress(OutOfTime):
        return Elimination(sizes, factors, largest, deadline).solve()
    return quick


def _held(model: Model, values: Sequence[int]) -> float:
    """Bytes that a rank holds."""
    return sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in model.memory)


def place_forward(search: Search) -> Found:
    """Give every forward operator without a layout, and every parameter that it reads, what the search finds."""
    mesh = mesh_of(search)
    model = Model(search, mesh)
    largest = FAST if search.graph.attrs.get("search_mode") == "recursive_programming" else LARGEST
    terms = Terms.of(search.graph.attrs)
    assignment = cheapest_within(model, terms.memory, largest, terms.seconds)
    if terms.memory:
        search.graph.attrs["search_held"] = round(_held(model, assignment.values))
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
