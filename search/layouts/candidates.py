"""Finds many plans of one model that take little memory or time, so that those which the search left out are tried.

What a compiled program holds is more than sums of tables say: steps between layouts, what is fused, what is gathered
ahead. So plans are looked for under several measures of memory, for every sharding of each operator the best, and are
then told apart by a run through the step (`Footprint`), and at last by compiling them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import permutations

import numpy as np

from mspc.ir.graph import Node, Parameter, Value, element_types
from mspc.ir.layout import Layout, common_mesh, on_mesh
from mspc.passes.lib.propagation import elementwise
from mspc.search.model.memory import MemoryModel
from mspc.search.model.model import NEVER, CostModel, Source
from mspc.search.solver.elimination import Bucket, Elimination, Factor, Sums, Table

Values = tuple[int, ...]

SMALL_TABLES = 1 << 16
"""Elements of a table at most: there are many eliminations, and none has to prove anything."""
WORK = 30_000
"""Choices by operators of a network up to which every way to take each decision is looked at."""
POWERS = 1, 4
"""Of what operators hold while they run: the sum of it, and one to which the largest contributes most."""
LEXICAL = 1e4
"""The price under which memory counts first."""
FAIR = 0.25
"""The same where a byte held and a byte sent count about alike."""


class PlanCandidates:
    """Plans of a model; what they cost, and what they hold."""

    def __init__(self, model: CostModel, memory: MemoryModel) -> None:
        self.model, self.memory = model, memory
        self.sizes = [variable.size for variable in model.variables]
        self.costs = Sums(model.factors)
        self.order: list[int] = []
        self.decisions = self._decisions()
        choices = sum(self.sizes[variable] for variable in self.decisions)
        self.is_small = choices * len(model.search.graph.nodes) <= WORK
        """Whether plans are few and soon told apart."""
        parameters = {v for value, v in model.of.items() if isinstance(value, Parameter)}
        self._parameters = self._buckets(parameters.intersection(self.decisions))
        self._copies = self._buckets(set(range(len(self.sizes))).difference(self.decisions))
        self._copies_of: dict[int, list[Bucket]] = {}
        """Of every variable the copies that serve it."""
        for copy in self._copies:
            for variable in dict.fromkeys(v for factor in copy.factors for v in factor.variables):
                self._copies_of.setdefault(variable, []).append(copy)
        self._peaks: dict[Values, float] = {}
        self._costs: dict[Values, float] = {}

    def peak(self, values: Values) -> float:
        """Bytes at the peak of a step, as they are foreseen."""
        if values not in self._peaks:
            self._peaks[values] = self.memory.peak(values)
        return self._peaks[values]

    def cost(self, values: Values) -> float:
        """What a plan costs in the model."""
        if values not in self._costs:
            self._costs[values] = self.costs.total(values)
        return self._costs[values]

    def _possible(self, plans: Collection[Values]) -> list[Values]:
        """Those of some plans that the model does not rule out; the costs of all are then known."""
        unknown = [values for values in plans if values not in self._costs]
        if unknown:
            self._costs.update(zip(unknown, self.costs.total_of_each(unknown), strict=True))
        return [values for values in plans if self._costs[values] < NEVER / 2]

    def found(self) -> list[Values]:
        """The best plan of every measure, and in small networks that with every choice of each decision."""
        plans: dict[Values, None] = {}
        for factors in self._measures():
            plans[self.settled(self._solved(factors))] = None
            problem = Elimination(self.sizes, factors, SMALL_TABLES, order=self.order)
            for variable in self.decisions if self.is_small else ():
                plans.update(dict.fromkeys(self.settled(plan.values) for plan in problem.given_each(variable)))
        return self._possible(plans)

    def settled(self, values: Sequence[int]) -> Values:
        """The same plan with the copies that serve it best: they follow from all else."""
        found = list(values)
        for copy in self._copies:
            found[copy.variable] = copy.best(found)
        return tuple(found)

    def _changed(self, values: Values, variable: int, choice: int) -> Values:
        """A settled plan with another choice of a variable, settled."""
        found = list(values)
        found[variable] = choice
        for copy in self._copies_of.get(variable, ()):
            found[copy.variable] = copy.best(found)
        return tuple(found)

    def plain(self, values: Values) -> Values:
        """The same plan with parameters stored as costs the least: what is sharded further may hold more for being
        brought together again."""
        found = list(values)
        for parameter in self._parameters:
            found[parameter.variable] = parameter.best(found)
        return self.settled(found)

    def _decisions(self) -> list[int]:
        """The variables of operators, of parameters and of cells that may be computed again."""
        own = dict.fromkeys([*self.model.of.values(), *self.memory.switches.values()])
        return [variable for variable in own if self.sizes[variable] > 1]

    def _buckets(self, variables: Collection[int]) -> list[Bucket]:
        """The factors of the costs that decide on each of some variables."""
        found: dict[int, list[Factor]] = {}
        for factor in self.model.factors:
            for variable in factor.variables:
                if variable in variables and self.sizes[variable] > 1:
                    found.setdefault(variable, []).append(factor)
        return [Bucket(variable, factors) for variable, factors in found.items()]

    def neighbours(self, values: Values) -> list[Values]:
        """The plans that take one decision of a settled one otherwise, with the copies that serve them best; where it
        is none on a parameter, also with the parameters stored as suits it. None of a network that is not small."""
        if not self.is_small:
            return []
        parameters = {bucket.variable for bucket in self._parameters}
        found: dict[Values, None] = {}
        for variable in self.decisions:
            for choice in range(self.sizes[variable]):
                if choice != values[variable]:
                    other = self._changed(values, variable, choice)
                    found[other] = None
                    if variable not in parameters:
                        found[self.plain(other)] = None
        return self._possible(found)

    def _solved(self, factors: Sequence[Factor]) -> Values:
        found = Elimination(self.sizes, factors, SMALL_TABLES, order=self.order)
        values = found.solve().values
        if not self.order:
            self.order = [bucket.variable for bucket in found.buckets]
        return values

    def _measures(self) -> Iterator[list[Factor]]:
        """Costs, and memory at several prices."""
        costs = self.model.factors
        yield list(costs)
        held = [[*self.memory.static, *self._running(power)] for power in POWERS]
        held += [[*row, *self._running(1)] for row in self.memory.rows[1:]]
        for price in (LEXICAL, FAIR):
            for measure in held:
                yield [*costs, *_at_price(measure, price)]

    def _running(self, power: int) -> list[Factor]:
        """What operators hold while they run, and values while they are brought to them, each to a power."""
        model = self.model
        scale = max((sum(t.nbytes for t in element_types(node.type)) for node in model.nodes), default=1)
        found: list[Factor] = []

        def powered(table: Table) -> Table:
            return scale * (table / scale) ** power

        for node in model.nodes:
            own = model.of[node]
            variable = model.variables[own]
            made, read = np.zeros(variable.size), np.zeros(variable.size)
            for numbers, type in zip(variable.outputs, element_types(node.type), strict=True):
                made = made + model.held(numbers, type)
            for place, value in enumerate(node.inputs):
                source = model.source(value)
                if source is None or source[0] not in model.of:
                    continue
                needs = variable.operands[place]
                if isinstance(source[0], Node):
                    read = read + model.held(needs, value.tensor_type)
                if model.of[source[0]] != own:
                    found.append(_pair(model.of[source[0]], own, powered(self._brought(source, value, needs))))
            rule = model.search.rules[node]
            in_place = rule is not None and elementwise(rule)
            found.append(Factor((own,), powered(np.maximum(made, read) if in_place else made + read)))
        for value, layout in model.search.traffic.required.items():
            source = model.source(value)
            if source is not None and source[0] in model.of:
                needs = np.array([model.number(value, layout)])
                found.append(Factor((model.of[source[0]],), powered(self._brought(source, value, needs)[:, 0])))
        return found

    def _brought(self, source: Source, read: Value, needs: Table) -> Table:
        """[as it is made, as it is needed]: bytes of a tensor in both layouts where they differ, once where partial
        sums are added up in place. read: the tensor as it is read."""
        value, index = source
        type = element_types(value.type)[index]
        outputs = self.model.variables[self.model.of[value]].outputs[index]
        made, needed = self.model.held(outputs, type), self.model.held(needs, type)
        partial = np.array([self.model.layout(read, int(number)).is_partial for number in outputs])
        in_place = partial[:, None] & (made[:, None] == needed[None, :])
        both = (made * isinstance(value, Node))[:, None] * ~in_place + needed[None, :]
        return both * (outputs[:, None] != needs[None, :])


def _pair(one: int, other: int, table: Table) -> Factor:
    return Factor((one, other), table) if one < other else Factor((other, one), np.ascontiguousarray(table.T))


def _at_price(factors: Sequence[Factor], price: float) -> list[Factor]:
    tables: dict[int, Table] = {}
    found: list[Factor] = []
    for factor in factors:
        table = tables.setdefault(id(factor.table), factor.table * price)
        found.append(Factor(factor.variables, table))
    return found


def least_stored(model: CostModel) -> int:
    """Bytes of parameters and inputs on a rank that no plan can do without: inputs as they arrive, everything else
    sharded by as many ranks as its shape lets, and what is returned as the caller receives it."""
    graph, total = model.search.graph, 0.0
    users = model.search.traffic.users
    for parameter in graph.parameters:
        if not users.get(parameter):
            continue
        type, layout = parameter.tensor_type, parameter.layout
        given = getattr(layout, "strategy", None) if parameter.kind == "input" else None
        total += type.nbytes / (math.prod(given) if given is not None else _most_parts(type.shape, model.search.ranks))
    for value, layout in model.search.traffic.required.items():
        if isinstance(value, Node) and not value.op.is_view and not value.op.mutates:
            total += value.tensor_type.nbytes / math.prod(layout.strategy)
    return math.ceil(total)


def _most_parts(shape: Sequence[int], ranks: int) -> int:
    """The most equal slices that a tensor can be sharded into, by axes of a mesh of so many ranks."""
    parts, left, prime = 1, ranks, 2
    sizes = list(shape)
    while left > 1:
        while left % prime == 0:
            left //= prime
            at = next((i for i, size in enumerate(sizes) if size and size % prime == 0), None)
            if at is not None:
                sizes[at] //= prime
                parts *= prime
        prime += 1
    return parts


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
