"""Costs of the next best layouts of an operator, from the cost tables of the search.

For every operator on which a search could decide, all ways to shard it are compared while everything else stays fixed.
A cost includes the bytes sent by the operator itself, those to redistribute its operands and its result, and the same
for gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import Machine
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, common_mesh
from mspc.passes.lib.layout_search import Search
from mspc.passes.lib.opened_graphs import opened
from mspc.search.layouts.cheapest import AXES, mesh_of
from mspc.search.model.model import NEVER, CostModel
from mspc.search.plans.alternatives import LARGE, terms_for
from mspc.search.solver.elimination import Factor

NEXT = 2
"""Alternative layouts that are reported for an operator."""
FEW = 1000
"""Nodes below which a graph's mesh may have one axis more than a search's mesh."""
LITTLE = 1e-3
"""Difference in bytes up to which two ways cost the same."""


@dataclass(frozen=True)
class OperatorAlternative:
    """One way to shard an operator. seconds: its cost above that of the present one, infinite if it is impossible."""

    operands: tuple[Layout, ...]
    seconds: float


def next_ways(configured: Graph, decided: Graph, machine: Machine) -> dict[int, list[OperatorAlternative]]:
    """Return, by number of a node, the present way to shard it and the cheapest others.

    Args:
        configured: the graph before the pass that decides on layouts. decided: after it, with the same nodes.

    Returns:
        No entry for operators on which a search does not decide or which are in the region of a node, and no entries at
        all if the two graphs do not match.
    """
    with opened(configured), opened(decided):
        nodes = [*decided.nodes]
        found = _ways_of_all(configured, decided, machine)
    places = {node: place for place, node in enumerate(decided.nodes)}
    return {places[nodes[i]]: ways for i, ways in found.items() if nodes[i] in places}


def _ways_of_all(configured: Graph, decided: Graph, machine: Machine) -> dict[int, list[OperatorAlternative]]:
    if [node.op.name for node in configured.nodes] != [node.op.name for node in decided.nodes]:
        return {}
    terms = terms_for(machine.under(configured.attrs)).attributes()
    configured.attrs, decided.attrs = {**configured.attrs, **terms}, {**decided.attrs, **terms}
    for node in configured.nodes:
        node.in_layouts = node.layout = None
    try:
        model = _model(configured, decided)
    except MspcError:
        return {}
    return _Neighbours(model, configured, decided, machine).all_ways()


def _model(graph: Graph, decided: Graph) -> CostModel:
    """Return the problem on the mesh of the present layouts if a search can use that mesh, else on the search's own."""
    search = Search(graph)
    search.structure([node for node in graph.nodes if node.phase == "forward"])
    own = mesh_of(Search(decided))  # the order of its axes that fits the present layouts
    mesh: tuple[int, ...] | None = own
    for other in dict.fromkeys(layout.mesh for node in decided.nodes for layout in node.in_layouts or () if layout):
        mesh = None if mesh is None else common_mesh(mesh, other)
    most = AXES + (len(graph.nodes) < FEW)
    return CostModel(search, own if mesh is None or len(mesh) > most else mesh)


class _Neighbours:
    """The cost tables around every operator, read at the present layouts."""

    def __init__(self, model: CostModel, configured: Graph, decided: Graph, machine: Machine) -> None:
        self.model = model
        self.bandwidth = machine.link.bandwidth.at(LARGE)
        self.stands: dict[int, int] = {}
        self.numbers: dict[Node, int] = {}
        there = dict(zip(configured.nodes, decided.nodes, strict=True))
        parameters = {parameter.name: parameter for parameter in decided.parameters}
        for index, node in enumerate(configured.nodes):
            if node in model.of:
                self.numbers[node] = index
                choices, stated = model.variables[model.of[node]].choices, there[node].in_layouts
                self._note(model.of[node], (choice.inputs == stated for choice in choices))
        for value, variable in model.of.items():
            if isinstance(value, Parameter) and value.name in parameters:
                stored, numbers = parameters[value.name].layout, model.variables[variable].outputs[0]
                self._note(variable, (model.layout(value, int(n)) == stored for n in numbers))
        self.around: dict[int, list[Factor]] = defaultdict(list)
        for factor in model.factors:
            for variable in factor.variables:
                self.around[variable].append(factor)

    def _note(self, variable: int, is_present: Iterable[bool]) -> None:
        """Record the present choice of a variable, if it has one. is_present: whether each choice is that one."""
        place = next((i for i, present in enumerate(is_present) if present), None)
        if place is not None:
            self.stands.setdefault(variable, place)

    def all_ways(self) -> dict[int, list[OperatorAlternative]]:
        every = {number: self._ways(self.model.of[node]) for node, number in self.numbers.items()}
        return {number: ways for number, ways in every.items() if ways}

    def _ways(self, variable: int) -> list[OperatorAlternative]:
        """Return the present way and the `NEXT` cheapest others; [] if the present way is not one of the model's."""
        stands = self.stands.get(variable)
        if stands is None:
            return []
        total = np.zeros(self.model.variables[variable].size)
        for factor in self.around[variable]:
            total = total + self._read(factor, variable)
        choices = self.model.variables[variable].choices
        stated = choices[stands].inputs
        found: dict[tuple[Layout, ...], OperatorAlternative] = {stated: OperatorAlternative(stated, 0.0)}
        for i in np.argsort(total, kind="stable"):
            if len(found) > NEXT:
                break
            more = float(total[i] - total[stands])
            seconds = math.inf if more >= NEVER / 2 else more / self.bandwidth if abs(more) > LITTLE else 0.0
            if seconds < math.inf:
                found.setdefault(choices[i].inputs, OperatorAlternative(choices[i].inputs, seconds))
        return list(found.values())

    def _read(self, factor: Factor, variable: int) -> Any:
        """Return a factor's costs for every choice of a variable.

        The other variables have their present choice, or the cheapest one if the present layout is not among their
        choices (copies of values, and layouts that a search would not choose).
        """
        others = tuple(slice(None) if v == variable else self.stands.get(v, slice(None)) for v in factor.variables)
        table = factor.table[others]
        left = [v for v, place in zip(factor.variables, others, strict=True) if isinstance(place, slice)]
        axes = tuple(i for i, v in enumerate(left) if v != variable)
        return table.min(axis=axes) if axes else table
