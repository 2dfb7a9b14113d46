"""Search for the cheapest assignment within a memory limit, including mixtures of an assignment that exceeds it and one
within it.

If two assignments differ in independent parts, each part may be taken from either. The changes of the parts add up, so
that the best choice within a limit is a knapsack (Kellerer, Pferschy and Pisinger 2004), which is filled in steps of a
small share of the memory to save. Equal blocks of a network are such parts, and so are most decisions on recomputing a
cell.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.graph import Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, common_mesh, on_mesh
from mspc.passes.lib.choices import MINIMAL_MEMORY
from mspc.search.model.memory import MemoryModel
from mspc.search.model.model import NEVER, CostModel, Source
from mspc.search.solver.elimination import Assignment, Bucket, Elimination, Factor, Labels, OutOfTime, Sums, Table

STEPS = 4096
"""Number of steps into which the memory to save is divided."""


@dataclass(frozen=True)
class CostedAssignment:
    """An assignment with its cost and the bytes of every memory row."""

    values: tuple[int, ...]
    cost: float
    rows: tuple[float, ...]


@dataclass(frozen=True)
class VariableGroup:
    """Independent group of variables in which two assignments differ, and the changes of cost and rows if the group
    takes the choices of the second."""

    variables: tuple[int, ...]
    cost: float
    rows: tuple[float, ...]


class Mixing:
    """Mixtures of assignments of one problem. costs: the sum to minimise. rows: the limited sums. early: position of
    some variables in the step; among equally good groups, the earliest is changed."""

    def __init__(self, costs: Sums, rows: Sequence[Sums], early: Mapping[int, int]) -> None:
        self.sums = [costs, *rows]
        self.early = early
        self._parts: dict[tuple[tuple[int, ...], tuple[int, ...]], list[VariableGroup]] = {}

    def between(
        self, over: CostedAssignment, within: CostedAssignment, row: int, limits: Sequence[float]
    ) -> CostedAssignment | None:
        """Return the best mixture of two plans within limits, or None. row: the row in which the first plan exceeds its
        limit."""
        key = (over.values, within.values)
        if key not in self._parts:
            self._parts[key] = self.parts(*key)
        save = [part for part in self._parts[key] if part.rows[row] < 0 < part.cost]
        taken = [part for part in self._parts[key] if part.rows[row] <= 0 >= part.cost]
        needed = over.rows[row] + sum(part.rows[row] for part in taken) - limits[row]
        taken += self._knapsack(save, row, needed) if needed > 0 else []
        values = list(over.values)
        for part in taken:
            for v in part.variables:
                values[v] = within.values[v]
        rows = [held + sum(part.rows[i] for part in taken) for i, held in enumerate(over.rows)]
        if any(held > most for held, most in zip(rows, limits, strict=True)):
            return None
        return CostedAssignment(tuple(values), over.cost + sum(part.cost for part in taken), tuple(rows))

    def parts(self, over: Sequence[int], within: Sequence[int]) -> list[VariableGroup]:
        """Return the independent groups of variables in which two assignments differ."""
        one, other = np.asarray(over), np.asarray(within)
        differs = one != other
        leader = {int(v): int(v) for v in np.flatnonzero(differs)}

        def find(v: int) -> int:
            while leader[v] != v:
                leader[v] = leader[leader[v]]
                v = leader[v]
            return v

        changes: list[list[tuple[Any, Any]]] = [[] for _ in self.sums]
        for i, sums in enumerate(self.sums):
            for table, variables in sums.groups:
                touched = differs[variables]
                where = np.flatnonzero(touched.any(axis=1))
                if not len(where):
                    continue
                own, touched = variables[where], touched[where]
                change = table[tuple(other[own].T)] - table[tuple(one[own].T)]
                changes[i].append((own[np.arange(len(own)), touched.argmax(axis=1)], change))
                for joined in np.flatnonzero(touched.sum(axis=1) > 1):
                    first, *rest = (find(int(v)) for v in own[joined][touched[joined]])
                    for v in rest:
                        leader[find(v)] = find(first)
        members: dict[int, list[int]] = {}
        for v in leader:
            members.setdefault(find(v), []).append(v)
        totals = np.zeros((len(self.sums), len(over)))
        for i, changed in enumerate(changes):
            for v, change in changed:
                np.add.at(totals[i], v, change)
        found: list[VariableGroup] = []
        for own in members.values():
            cost, *rows = totals[:, own].sum(axis=1).tolist()
            found.append(VariableGroup(tuple(own), cost, tuple(rows)))
        return sorted(found, key=lambda part: min((self.early.get(v, v), v) for v in part.variables))

    @staticmethod
    def _knapsack(parts: Sequence[VariableGroup], row: int, needed: float) -> list[VariableGroup]:
        """Return the cheapest groups that together save `needed` bytes, the earliest of equal ones; [] if all of them
        save less."""
        steps = np.arange(STEPS + 1)
        least = np.full(STEPS + 1, np.inf)
        least[0] = 0.0
        saved = [min(STEPS, int(-part.rows[row] / needed * STEPS)) for part in parts]
        taken: list[Any] = []
        for part, own in zip(reversed(parts), reversed(saved), strict=True):
            with_it = least[np.maximum(steps - own, 0)] + part.cost
            taken.append(with_it <= least)
            least = np.minimum(least, with_it)
        if not np.isfinite(least[STEPS]):
            return []
        found: list[VariableGroup] = []
        left = STEPS
        for part, own, takes in zip(parts, saved, reversed(taken), strict=True):
            if left > 0 and takes[left]:
                found.append(part)
                left = max(0, left - own)
        return found


LIMITED = 1 << 20
"""Maximum number of elements of a table. There are many eliminations; labels resolve the assignments that they leave
open."""
QUICK = 1 << 10
"""Maximum number of elements of a table if there is a deadline."""
PRICES = 6
"""Maximum number of memory prices tried for a row."""
MEMORY_FIRST_PRICE = 1e4
"""Price at which memory dominates, and costs decide between plans of equal memory."""
CLOSE = 0.005
"""Gap, as a share of a plan's cost, below which a plan is not improved further."""
WIDTHS = (64, 512, 2048)
"""Beam widths of the label search; a larger width is used if the gap stays large."""
EFFORT = 500_000
"""Maximum of labels x decisions of a search wider than the first."""
NARROW = 8
"""Beam width of the search for the first assignment within a limit."""
ENOUGH = 0.01
"""Gap, as a share of a plan's cost, below which no wider beam is used."""
MANY = 500
"""Number of decisions above which a problem is large: labels are searched only if the gap of mixtures exceeds `ENOUGH`,
and for one limit."""
TRIALS = 5
"""Number of limits that are tried, first smaller and then larger, if the predicted peak exceeds the limit."""
LITTLE_MORE = (1.02, 1.1, 1.25)
"""Factors on the minimum of a row that are tried, because the peak, which is unknown before, may then be lower."""
SAME = 1e-9
"""Relative difference below which sums are equal."""
MOMENTS = 6
"""Maximum number of memory rows."""


@dataclass(frozen=True)
class _Priced:
    """Best plan at a price for a row. bound: lower bound of the cost of all plans including that price. elimination:
    the elimination that found both."""

    price: float
    plan: CostedAssignment
    bound: float
    elimination: Elimination


class Limited:
    """A problem with a limited sum: choices of every variable, factors of the costs, and `memory`. largest: maximum
    number of elements of a table. seconds: time limit of the search, 0 for none. proves: search labels to close the gap
    between two plans that prices leave open."""

    def __init__(
        self, sizes: Sequence[int], factors: Sequence[Factor], memory: MemoryModel, largest: int, seconds: float = 0,
        proves: bool = True,
    ) -> None:  # fmt: skip
        self.sizes, self.factors, self.memory, self.largest = list(sizes), list(factors), memory, min(largest, LIMITED)
        self.proves = proves
        self.few = proves and sum(size > 1 for size in self.sizes) < MANY
        self.deadline = time.monotonic() + seconds if seconds else math.inf
        self.costs, self.rows = Sums(factors), [Sums(row) for row in memory.rows]
        self.mixing = Mixing(self.costs, self.rows, memory.early)
        self.order: list[int] = []
        self.first = self._at(0, 0.0)
        self.row = max(range(len(self.rows)), key=lambda i: self.first.plan.rows[i])
        """The row that gets a price."""
        self.least = [self._row_elimination(row) for row in memory.rows]
        self.known: list[list[_Priced]] = [[] for _ in self.rows]
        """Results of the prices of every row."""
        self.smallest: dict[int, tuple[CostedAssignment, float]] = {}

    def solve(self, limit: int) -> Assignment:
        """Return the cheapest assignment within a limit of bytes. For `MINIMAL_MEMORY`, or if no plan seems to be
        within the limit, return the assignment with the least memory. Raise MspcError if no assignment can be within
        the limit."""
        if limit == MINIMAL_MEMORY:
            return self._smallest()
        least = math.ceil(max(row.constant for row in self.least))
        if least > limit:
            raise MspcError(
                f"no plan needs at most {shown_bytes(limit)} of memory on a rank: the least is {shown_bytes(least)}",
                notes=["take more ranks, or allow more memory"],
            )
        return self._at_peak(limit) or self._smallest()

    def _at_peak(self, limit: int) -> Assignment | None:
        """Return the best assignment whose predicted peak is within a limit, or None. A moment at which a plan exceeds
        the limit becomes a row. Finally the limit of the rows is lowered until the peak fits, and then raised as far as
        possible."""
        low, high, within = 0, limit + 1, limit
        best: tuple[Assignment, int] | None = None
        cheaper, proved = 0.0, self.first.bound
        for _ in range(TRIALS):
            found = self._within(within)
            over = self._over(found, limit)
            while found is not None and within == limit:
                proved = max(proved, found.bound)
                if over <= 0 or not self._adds_moment(found.values):
                    break
                found = self._within(within)
                over = self._over(found, limit)
            if found is not None and over <= 0:
                low, best = within, (found, within) if best is None or found.cost < best[0].cost else best
                if within == limit or best[0].cost - cheaper <= CLOSE * best[0].cost:
                    break
            elif found is not None:
                high, cheaper = min(within, math.ceil(max(self.memory.live_bytes(found.values)))), found.cost
            else:
                high = within
            if best is not None or found is None:
                within = (low + high) // 2
            else:
                within = high - math.ceil(over)
            if within <= low or high - low <= CLOSE * limit:
                break
        if best is None:
            return None
        found = self._better(*best, limit)
        return Assignment(found.values, found.cost, min(proved, found.cost))

    def _over(self, found: Assignment | None, limit: int) -> float:
        """Return the bytes by which the predicted peak exceeds a limit; a positive number if there is no assignment."""
        return 1.0 if found is None else self.memory.peak(found.values) - limit

    def _adds_moment(self, values: Sequence[int]) -> bool:
        """Add the moment of a plan's peak as a row and give it the price. Return False if there are enough rows or the
        moment cannot be a row."""
        if len(self.rows) >= MOMENTS or not self.memory.add_moment(values):
            return False
        row = self.memory.rows[-1]
        self.rows.append(Sums(row))
        self.mixing = Mixing(self.costs, self.rows, self.memory.early)
        self.least.append(self._row_elimination(row))
        self.first = replace(self.first, plan=self._plan(self.first.plan.values))
        self.known = [[replace(each, plan=self._plan(each.plan.values)) for each in known] for known in self.known]
        self.smallest = {i: (self._plan(plan.values), bound) for i, (plan, bound) in self.smallest.items()}
        self.known.append([])
        self.row = len(self.rows) - 1
        return True

    def _better(self, found: Assignment, within: int, limit: int) -> Assignment:
        """Return the best known assignment whose peak is within a limit, improved by a label search if the gap is
        large."""
        if not self.proves or found.cost - found.bound <= ENOUGH * found.cost:
            return found
        better = self._read_back(found, within, ENOUGH)
        return better if self.memory.peak(better.values) <= limit else found

    def _smallest(self) -> Assignment:
        """Return the assignment with the lowest peak among those at, or slightly above, the minimum of a row."""
        while self._adds_moment(self._smallest_plan(self.row)[0].values):
            pass
        plans = [self._smallest_plan(row) for row in range(len(self.rows))]
        found = [Assignment(plan.values, plan.cost, max(self.first.bound, min(plan.cost, bound)))
                 for plan, bound in plans]  # fmt: skip
        for share in LITTLE_MORE:
            near = self._within(math.ceil(min(max(plan.rows) for plan, _ in plans) * share), reads_back=self.few)
            found += [near] if near is not None else []
        return min(found, key=lambda each: (self.memory.peak(each.values), each.cost))

    def _smallest_plan(self, row: int) -> tuple[CostedAssignment, float]:
        """Return the plan with the minimum of a row, and a lower bound of the cost of all plans with as few bytes in
        it."""
        if row not in self.smallest:
            priced = self._at(row, MEMORY_FIRST_PRICE)
            self.smallest[row] = priced.plan, priced.bound - MEMORY_FIRST_PRICE * priced.plan.rows[row]
        return self.smallest[row]

    def _within(self, limit: int, reads_back: bool = True) -> Assignment | None:
        """Return the best assignment with rows within a limit, or None. reads_back: search labels if no known plan is
        within the limit."""
        first = self.first
        if max(first.plan.rows) <= limit:
            return Assignment(first.plan.values, first.plan.cost, first.bound)
        if any(least.constant > limit for least in self.least):
            return None
        if first.plan.rows[self.row] <= limit:
            self.row = max(range(len(self.rows)), key=lambda i: first.plan.rows[i])
        best = self._any_plan_within(limit, reads_back)
        if best is None:
            return None
        best = self._between(best, limit)
        proving = self._proving(limit)
        found = Assignment(best.values, best.cost, min(proving.bound - proving.price * limit, best.cost))
        return self._read_back(found, limit, CLOSE) if self.few else found

    def _read_back(self, found: Assignment, limit: int, close: float) -> Assignment:
        """Return a better plan within a limit, or a better bound, from a label search if the gap exceeds a share of the
        cost."""
        proving = self._proving(limit)
        labels = self._labels(proving, limit)
        values, cost, bound = found.values, found.cost, found.bound
        for width in WIDTHS:
            wide = width > WIDTHS[0] and width * len(labels.steps) > EFFORT
            if wide or cost - bound <= close * cost or time.monotonic() > self.deadline:
                break
            better, cost, proved = labels.search(cost, CLOSE / 2, width)
            values, bound, close = better or values, max(bound, min(proved, cost)), ENOUGH
        return Assignment(values, cost, min(bound, cost))

    def _labels(self, proving: _Priced, limit: int) -> Labels:
        prices = [proving.price * (i == self.row) for i in range(len(self.rows))]
        limits = [limit] * len(self.rows)
        return Labels(self.first.elimination, proving.elimination, prices, self.least, limits)

    def _any_plan_within(self, limit: int, reads_back: bool) -> CostedAssignment | None:
        """Return a plan with rows within a limit, or None: the cheapest known one, else the one with the minimum of a
        row."""
        known = [each.plan for priced in self.known for each in priced if max(each.plan.rows) <= limit]
        if known:
            return min(known, key=lambda plan: plan.cost)
        smallest, _ = self._smallest_plan(self.row)
        if max(smallest.rows) <= limit:
            return smallest
        if not reads_back:
            return None
        values, _, _ = self._labels(self.first, limit).search(math.inf, 0.0, NARROW)
        return None if values is None else self._plan(values)

    def _between(self, best: CostedAssignment, limit: int) -> CostedAssignment:
        """Return the cheapest plan within the limit. Prices between those of a plan above the limit and of one within
        it are tried as long as mixtures of the two leave a gap."""
        given, row, limits = best, self.row, [limit] * len(self.rows)
        close = CLOSE if self.few else ENOUGH
        while True:
            plans = [given, self.first.plan, *(each.plan for each in self.known[row])]
            over = min((plan for plan in plans if plan.rows[row] > limit), key=lambda plan: plan.rows[row])
            below = max((plan for plan in plans if plan.rows[row] <= limit), key=lambda plan: plan.rows[row])
            mixed = [self.mixing.between(one, other, row, limits)
                     for one, other in {(over, below), (over, best), (self.first.plan, best)}]  # fmt: skip
            fitting = [plan for plan in (*mixed, *plans) if plan is not None and max(plan.rows) <= limit]
            best = min([best, *fitting], key=lambda plan: (plan.cost, plan.values))
            proving = self._proving(limit)
            bound = proving.bound - proving.price * limit
            done = best.cost - bound <= close * best.cost or len(self.known[row]) >= PRICES
            if done or time.monotonic() > self.deadline:
                return best
            price = (below.cost - over.cost) / (over.rows[row] - below.rows[row])
            if price <= 0 or any(abs(each.price - price) <= SAME * price for each in self.known[row]):
                return best  # both plans are on the convex hull and no plan is below the line between them
            self.known[row].append(self._at(row, price))

    def _proving(self, limit: int) -> _Priced:
        """Return the priced result with the best bound for a limit."""
        return max([self.first, *self.known[self.row]], key=lambda each: each.bound - each.price * limit)

    def _plan(self, values: tuple[int, ...]) -> CostedAssignment:
        return CostedAssignment(values, self.costs.total(values), tuple(row.total(values) for row in self.rows))

    def _row_elimination(self, row: Sequence[Factor]) -> Elimination:
        """Return the elimination that minimises one row of memory."""
        found = Elimination(self.sizes, row, self.largest, order=self.order)
        found.solve()
        return found

    def _at(self, row: int, price: float) -> _Priced:
        """Return the best plan with a price for every byte of a row."""
        found, elimination = self._solved(self._factors_at(row, price))
        if not self.order:
            self.order = [bucket.variable for bucket in elimination.buckets]
        return _Priced(price, self._plan(found.values), found.bound, elimination)

    def _factors_at(self, row: int, price: float) -> list[Factor]:
        tables: dict[tuple[int, float], Table] = {}
        found = list(self.factors)
        for factor, cost in self.memory.shares(row, price):
            if not cost and self.order:
                continue  # earlier, the variables that they join count for the order
            key = (id(factor.table), cost)
            if key not in tables:
                tables[key] = factor.table * cost
            found.append(Factor(factor.variables, tables[key]))
        return found

    def _solved(self, factors: list[Factor]) -> tuple[Assignment, Elimination]:
        """Return the cheapest assignment and its elimination, with small tables if the deadline passes first."""
        exact = Elimination(self.sizes, factors, self.largest, self.deadline, self.order)
        if self.deadline == math.inf:
            return exact.solve(), exact
        quick = Elimination(self.sizes, factors, QUICK, order=self.order)
        found = quick.solve()
        with contextlib.suppress(OutOfTime):
            return exact.solve(), exact
        return found, quick


# Candidates: many plans of one model with low memory or time, so that plans missed by the solver are tried, too.

# The memory of a compiled program is not a sum of tables: it also depends on steps between layouts, on fusion and on
# early gathers. The search therefore solves the model under several measures of memory, and takes the best plan for
# every sharding of each operator. The plans are ranked by a simulation of the step (`Footprint`), and finally by
# compiling them.


Values = tuple[int, ...]

SMALL_TABLES = 1 << 16
"""Maximum number of elements of a table. Tables are small because there are many eliminations and none proves a
bound."""
WORK = 30_000
"""Maximum of choices x operators for which every choice of each decision is tried."""
POWERS = 1, 4
"""Exponents of the live bytes of operators: 1 for their sum, 4 for a sum dominated by the largest."""
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
            in_place = rule is not None and rule.is_elementwise
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
