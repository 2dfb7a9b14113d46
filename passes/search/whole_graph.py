"""Layouts of all forward operators at once: the cheapest plan of a step, or one whose distance to it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from mspc.ir.graph import Parameter
from mspc.ops.op import Op
from mspc.passes.search.elimination import LARGEST, Assignment, Elimination
from mspc.passes.search.model import Model
from mspc.passes.sharding.layout_search import Search

SOURCE = "search"
"""Where a layout came from, in words."""
FAST = 1 << 16
"""Elements of a table in recursive programming, which may miss the best."""
AXES = 3
"""Axes of a mesh at most: every one multiplies the ways to cut an operator."""


@dataclass(frozen=True)
class Found:
    """What a search found on one mesh: bytes that a rank sends in a step, and the least that any plan there sends."""

    mesh: tuple[int, ...]
    assignment: Assignment


def mesh_of(ranks: int) -> tuple[int, ...]:
    """The prime factors of the number of ranks, largest first, multiplied together until there are `AXES` at most."""
    found: list[int] = []
    divisor = 2
    while ranks > 1:
        while ranks % divisor == 0:
            found.append(divisor)
            ranks //= divisor
        divisor += 1
    while len(found) > AXES:
        found.sort()
        found[:2] = [found[0] * found[1]]
    return tuple(sorted(found, reverse=True)) or (1,)


def place_forward(search: Search, mesh: tuple[int, ...]) -> Found:
    """Give every forward operator without a layout, and every parameter that it reads, what the search finds."""
    model = Model(search, mesh)
    largest = FAST if search.graph.attrs.get("search_mode") == "recursive_programming" else LARGEST
    assignment = Elimination([variable.size for variable in model.variables], model.factors, largest).solve()
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
