"""Finds plans near the best of a small network that is trained: for every choice of every operator the cheapest with
it.

What a search adds up has gradients go the way of their values back. The passes behind it may find another way, of which
only they know what it costs: through the gradient of a normalisation partial sums may pass where the value cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mspc.ir.graph import Node, Parameter
from mspc.ops.op import Op
from mspc.passes.lib.layout_search import Search
from mspc.search.model.model import NEVER, CostModel
from mspc.search.solver.elimination import Elimination, Sums

SMALL = 12
"""Operators of a network at most."""
TABLE = 1 << 14
"""Elements of a table at most."""
FEWEST, WORK = 20, 2400
"""Plans that are looked at, the cheapest first: so many of either kind, or as many as come to so many operators."""
BACK = "back"
"""The kind of a factor of what gradients send."""
DIGITS = 2
"""Of bytes: plans that cost the same are mostly one on other axes."""

Values = tuple[int, ...]


def nearby(model: CostModel) -> list[tuple[float, Values]]:
    """(bytes that it sends ahead of gradients, assignment) of plans of a model; none of a large network. First those
    near the best of all that the model counts, then those near the best where gradients may be free, the cheapest
    first."""
    sizes = [variable.size for variable in model.variables]
    decided = sorted({model.of[node] for node in model.nodes if sizes[model.of[node]] > 1})
    if len(decided) > SMALL:
        return []
    forward = [factor for factor, (kind, _) in zip(model.factors, model.about, strict=True) if kind != BACK]
    ahead, found = Sums(forward), dict[Values, float]()
    most = max(FEWEST, WORK // len(model.search.graph.nodes))
    for factors, first in ((model.factors, 1), (forward, 0)):  # the best of the model is known
        plans: dict[float, Values] = {}
        problem = Elimination(sizes, factors, TABLE)
        for variable in decided:
            for each in problem.given_each(variable):
                if each.cost < NEVER / 2:
                    plans.setdefault(round(each.cost, DIGITS), each.values)
        for cost in sorted(plans)[first : most + first]:
            found.setdefault(plans[cost], ahead.total(plans[cost]))
    return [(cost, values) for values, cost in found.items()]


def take_assignment(search: Search, model: CostModel, values: Sequence[int], source: str) -> None:
    """Give every forward operator without a layout, and every parameter that one reads, what an assignment says."""
    for value, v in model.of.items():
        if isinstance(value, Parameter) and value.layout is None:
            value.layout = model.layout(value, int(model.variables[v].outputs[0][values[v]]))
    for node in search.graph.nodes:
        if node.phase == "forward":
            _take(search, model, node, values, source)


def _take(search: Search, model: CostModel, node: Node, values: Sequence[int], source: str) -> None:
    if search.rules[node] is None:
        search.structure([node])
    elif node.in_layouts is None and cast(Op, node.op).operandwise:
        search.take_operandwise(node, source)
    elif node.in_layouts is None and node not in model.of:  # what a loop keeps for gradients, as it was made
        search.choose(node, source)
    elif node.in_layouts is None:
        v = model.of[node]
        search.take(node, model.variables[v].choices[values[v]], source)
