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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.choices import MINIMAL_MEMORY
from mspc.search.model.memory import MemoryModel
from mspc.search.solver.elimination import Assignment, Elimination, Factor, Labels, OutOfTime, Sums, Table

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
