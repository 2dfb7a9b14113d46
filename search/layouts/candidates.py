"""Generation of many plans of one model with low memory or time, so that plans missed by the solver are tried, too.

The memory of a compiled program is not a sum of tables: it also depends on steps between layouts, on fusion and on
early gathers. The search therefore solves the model under several measures of memory, and takes the best plan for every
sharding of each operator. The plans are ranked by a simulation of the step (`Footprint`), and finally by compiling
them.
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
"""Maximum number of elements of a table. Tables are small because there are many eliminations and none proves a
bound."""
WORK = 30_000
"""Maximum of choices x operators for which every choice of each decision is tried."""
POWERS = 1, 4
"""Exponents of the live bytes of operators: 1 for their sum, 4 for a sum dominated by the largest."""
MEMORY_FIRST_PRICE = 1e4
"""Price of memory at which it dominates the costs."""
BALANCED_PRICE = 0.25
"""Price of memory at which a live byte costs about as much as a sent byte."""


class PlanCandidates:
    """Plans of a model with their costs and memory."""

    def __init__(self, model: CostModel, memory: MemoryModel) -> None:
        self.model, self.memory = model, memory
        self.sizes = [variable.size for variable in model.variables]
        self.costs = Sums(model.factors)
        self.order: list[int] = []
        decided = dict.fromkeys([*model.of.values(), *memory.switches.values()])
        self.decisions = [variable for variable in decided if self.sizes[variable] > 1]
        choices = sum(self.sizes[variable] for variable in self.decisions)
        self.is_small = choices * len(model.search.graph.nodes) <= WORK
        """Whether plans are few and quickly compared."""
        parameters = {v for value, v in model.of.items() if isinstance(value, Parameter)}
        self._parameters = self._buckets(parameters.intersection(self.decisions))
        self._copies = self._buckets(set(range(len(self.sizes))).difference(self.decisions))
        self._copies_of: dict[int, list[Bucket]] = {}
        """For every variable, the copies that serve it."""
        for copy in self._copies:
            for variable in dict.fromkeys(v for factor in copy.factors for v in factor.variables):
                self._copies_of.setdefault(variable, []).append(copy)
        self._peaks: dict[Values, float] = {}
        self._costs: dict[Values, float] = {}

    def peak(self, values: Values) -> float:
        """Return the predicted bytes at the peak of a step."""
        if values not in self._peaks:
            self._peaks[values] = self.memory.peak(values)
        return self._peaks[values]

    def cost(self, values: Values) -> float:
        """Return the cost of a plan in the model."""
        if values not in self._costs:
            self._costs[values] = self.costs.total(values)
        return self._costs[values]

    def _possible(self, plans: Collection[Values]) -> list[Values]:
        """Return the plans that are feasible in the model, and cache the costs of all."""
        unknown = [values for values in plans if values not in self._costs]
        if unknown:
            self._costs.update(zip(unknown, self.costs.totals(unknown), strict=True))
        return [values for values in plans if self._costs[values] < NEVER / 2]

    def found(self) -> list[Values]:
        """Return the best plan under every measure and, in small networks, the best plan with every choice of each
        decision."""
        plans: dict[Values, None] = {}
        for factors in self._measures():
            plans[self.with_best_copies(self._solved(factors))] = None
            problem = Elimination(self.sizes, factors, SMALL_TABLES, order=self.order)
            for variable in self.decisions if self.is_small else ():
                plans.update(
                    dict.fromkeys(self.with_best_copies(plan.values) for plan in problem.min_marginals(variable))
                )
        return self._possible(plans)

    def with_best_copies(self, values: Sequence[int]) -> Values:
        """Return the same plan with the cheapest choice for every copy variable, which follows from the other
        decisions."""
        found = list(values)
        for copy in self._copies:
            found[copy.variable] = copy.best(found)
        return tuple(found)

    def _changed(self, values: Values, variable: int, choice: int) -> Values:
        """Return a plan with another choice of a variable, and the best copies for it."""
        found = list(values)
        found[variable] = choice
        for copy in self._copies_of.get(variable, ()):
            found[copy.variable] = copy.best(found)
        return tuple(found)

    def with_cheapest_storage(self, values: Values) -> Values:
        """Return the same plan with every parameter stored in its cheapest layout. A parameter that is sharded further
        may need more memory, because it is gathered again."""
        found = list(values)
        for parameter in self._parameters:
            found[parameter.variable] = parameter.best(found)
        return self.with_best_copies(found)

    def _buckets(self, variables: Collection[int]) -> list[Bucket]:
        """Return the cost factors of each of some variables."""
        found: dict[int, list[Factor]] = {}
        for factor in self.model.factors:
            for variable in factor.variables:
                if variable in variables and self.sizes[variable] > 1:
                    found.setdefault(variable, []).append(factor)
        return [Bucket(variable, factors) for variable, factors in found.items()]

    def neighbours(self, values: Values) -> list[Values]:
        """Return the plans that differ from a plan in one decision, with the best copies. For decisions other than
        parameters, also return each with the cheapest storage of parameters. Return [] if the network is not small."""
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
                        found[self.with_cheapest_storage(other)] = None
        return self._possible(found)

    def _solved(self, factors: Sequence[Factor]) -> Values:
        found = Elimination(self.sizes, factors, SMALL_TABLES, order=self.order)
        values = found.solve().values
        if not self.order:
            self.order = [bucket.variable for bucket in found.buckets]
        return values

    def _measures(self) -> Iterator[list[Factor]]:
        """Yield the costs, and the costs plus memory at several prices."""
        costs = self.model.factors
        yield list(costs)
        held = [[*self.memory.static, *self._running(power)] for power in POWERS]
        held += [[*row, *self._running(1)] for row in self.memory.rows[1:]]
        for price in (MEMORY_FIRST_PRICE, BALANCED_PRICE):
            for measure in held:
                yield [*costs, *_at_price(measure, price)]

    def _running(self, power: int) -> list[Factor]:
        """Return factors of the bytes that are live while operators run and values are redistributed, raised to a
        power."""
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
                made = made + model.slice_bytes(numbers, type)
            for place, value in enumerate(node.inputs):
                source = model.source(value)
                if source is None or source[0] not in model.of:
                    continue
                needs = variable.operands[place]
                if isinstance(source[0], Node):
                    read = read + model.slice_bytes(needs, value.tensor_type)
                if model.of[source[0]] != own:
                    found.append(_pair(model.of[source[0]], own, powered(self._redistribution(source, value, needs))))
            rule = model.search.rules[node]
            in_place = rule is not None and elementwise(rule)
            found.append(Factor((own,), powered(np.maximum(made, read) if in_place else made + read)))
        for value, layout in model.search.traffic.required.items():
            source = model.source(value)
            if source is not None and source[0] in model.of:
                needs = np.array([model.number(value, layout)])
                found.append(Factor((model.of[source[0]],), powered(self._redistribution(source, value, needs)[:, 0])))
        return found

    def _redistribution(self, source: Source, read: Value, needs: Table) -> Table:
        """Return [made, needed]: bytes of a tensor in both its layouts if they differ; bytes of one layout if partial
        sums are added in place. read: the operand."""
        value, index = source
        type = element_types(value.type)[index]
        outputs = self.model.variables[self.model.of[value]].outputs[index]
        made, needed = self.model.slice_bytes(outputs, type), self.model.slice_bytes(needs, type)
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


def stored_bytes_bound(model: CostModel) -> int:
    """Return a lower bound of a rank's bytes of parameters, inputs and results: inputs in their layouts, parameters
    sharded over as many ranks as their shapes allow, and results in the caller's layouts."""
    graph, total = model.search.graph, 0.0
    users = model.search.traffic.users
    for parameter in graph.parameters:
        if not users.get(parameter):
            continue
        type, layout = parameter.tensor_type, parameter.layout
        given = getattr(layout, "strategy", None) if parameter.kind == "input" else None
        total += type.nbytes / (math.prod(given) if given is not None else _max_shards(type.shape, model.search.ranks))
    for value, layout in model.search.traffic.required.items():
        if isinstance(value, Node) and not value.op.is_view and not value.op.mutates:
            total += value.tensor_type.nbytes / math.prod(layout.strategy)
    return math.ceil(total)


def _max_shards(shape: Sequence[int], ranks: int) -> int:
    """Return the maximum number of equal slices of a tensor on a mesh of `ranks` ranks."""
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
"""For every decision, the choice that each choice becomes if mesh axes are exchanged; -1 if there is none."""


class AxisSymmetry:
    """Exchanges of equally long mesh axes in the plans of a model. decisions: the variables that distinguish plans."""

    def __init__(self, model: CostModel, decisions: Sequence[int]) -> None:
        self.decisions = list(decisions)
        mesh = model.mesh
        orders = permutations(range(len(mesh)))
        alike = [order for order in orders if all(mesh[a] == mesh[b] for a, b in enumerate(order))]
        # With several hosts, axes of equal length differ in cost.
        self.exchanges = [] if model.hosts is not None else [_exchange(model, order) for order in alike[1:]]

    def key(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return a key that is equal for all assignments that differ only in the order of axes."""
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
    """Return a layout with its axes exchanged; None if it is on another mesh."""
    if common_mesh(mesh, layout.mesh) != mesh:
        return None
    dims, partial = on_mesh(layout, mesh)
    return Layout.of(mesh, [[order[a] for a in axes] for axes in dims], [order[a] for a in partial], layout.reduction)
