"""Recognizes assignments that differ only in which of several equal mesh axes is used where: their programs cost the
same, so one of them has to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from mspc.ir.graph import Parameter, Value
from mspc.ir.layout import Layout, common_mesh, on_mesh
from mspc.search.model.model import CostModel

Exchange = dict[int, tuple[int, ...]]
"""For every decision the choice that it becomes when mesh axes change places, -1 if it has no such choice."""


class AxisSymmetry:
    """The ways to exchange mesh axes of equal size in the plans of a model. decisions: the variables that tell plans
    apart."""

    def __init__(self, model: CostModel, decisions: Sequence[int]) -> None:
        self.decisions = list(decisions)
        mesh = model.mesh
        orders = permutations(range(len(mesh)))
        alike = [order for order in orders if all(mesh[a] == mesh[b] for a, b in enumerate(order))]
        # Between hosts axes differ in what they cost.
        self.exchanges = [] if model.hosts is not None else [_exchange(model, order) for order in alike[1:]]

    def key(self, values: Sequence[int]) -> tuple[int, ...]:
        """The same for all assignments that are alike."""
        own = tuple(values[v] for v in self.decisions)
        found = [own]
        for exchange in self.exchanges:
            other = tuple(exchange[v][c] if v in exchange else c for v, c in zip(self.decisions, own, strict=True))
            if -1 not in other:
                found.append(other)
        return min(found)


def _exchange(model: CostModel, order: Sequence[int]) -> Exchange:
    found: Exchange = {}
    for value, variable in model.of.items():
        if variable not in found:
            found[variable] = _choices(model, value, order)
    return found


def _choices(model: CostModel, value: Value, order: Sequence[int]) -> tuple[int, ...]:
    variable = model.variables[model.of[value]]
    if isinstance(value, Parameter):
        again = variable.again or (False,) * variable.size
        of_each = [((model.layout(value, int(number)),), again[i]) for i, number in enumerate(variable.outputs[0])]
    else:
        of_each = [((*choice.inputs, *choice.outputs), False) for choice in variable.choices]
    place = {each: i for i, each in enumerate(of_each)}
    return tuple(
        place.get((tuple(_permuted(layout, model.mesh, order) or layout for layout in layouts), again), -1)
        if all(_permuted(layout, model.mesh, order) for layout in layouts) else -1
        for layouts, again in of_each
    )  # fmt: skip


def _permuted(layout: Layout, mesh: tuple[int, ...], order: Sequence[int]) -> Layout | None:
    """A layout with its axes exchanged; None if it is on another mesh."""
    if common_mesh(mesh, layout.mesh) != mesh:
        return None
    dims, partial = on_mesh(layout, mesh)
    return Layout.of(mesh, [[order[a] for a in axes] for axes in dims], [order[a] for a in partial], layout.reduction)
