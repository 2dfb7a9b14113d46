"""Finds the cheapest assignment of variables under a sum of cost tables, by eliminating one variable after the other,
and adds the tables up for complete assignments.

Exact where the tables that arise stay small. Where one would be too large its terms are minimised apart from each
other ("mini-buckets", Dechter and Rish 2003): what comes out is then a lower bound, and the assignment, read back with
the true costs and improved one variable at a time, an upper bound.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass

Table = Any
"""An array of costs, one dimension a variable."""
LARGEST = 1 << 23
"""Elements of a table that is made, unless told otherwise."""
ROUNDING = 1e-9
"""By which share of it sums of one cost in other orders may differ."""
REMEMBERED = 1 << 22
"""Elements of the tables that are remembered from one elimination of a problem to the next, at most."""
ROUNDS = 20
"""How often single variables are revisited where the elimination was not exact."""


@dataclass(frozen=True, eq=False)
class Factor:
    """Costs of the choices of some variables together. variables: ascending; table: their dimensions in this order.
    Factors that have one table between them are alike, and what follows from them is computed once."""

    variables: tuple[int, ...]
    table: Table


@dataclass(frozen=True)
class Assignment:
    """values: the choice of every variable. cost: what they cost together. bound: no assignment costs less."""

    values: tuple[int, ...]
    cost: float
    bound: float

    @property
    def proven(self) -> float:
        """The bound without what is rounding alone: the cost itself where both are the same number."""
        return self.cost if self.cost - self.bound <= ROUNDING * abs(self.cost) else self.bound


class OutOfTime(Exception):
    """A deadline has passed."""


class Bucket:
    """What was joined when a variable was eliminated, to be read back: the factors, of which each had the variable.
    messages: what took their place."""

    def __init__(self, variable: int, factors: Sequence[Factor]) -> None:
        self.variable, self.factors = variable, tuple(factors)
        self.messages: tuple[Factor, ...] = ()

    def best(self, values: list[int]) -> int:
        """The cheapest choice of the variable where all others that its factors name are decided."""
        total: Table = 0.0
        for factor in self.factors:
            place = tuple(slice(None) if v == self.variable else values[v] for v in factor.variables)
            total = total + factor.table[place]
        return int(np.argmin(total))

    def best_of_each(self, values: Table) -> Table:
        """The same of several assignments at once, the columns of `values`."""
        total: Table = 0.0
        for factor in self.factors:
            place = tuple([slice(None) if v == self.variable else values[v] for v in factor.variables])
            costs = factor.table[place]  # NumPy puts the choices last, unless nothing stands before them
            total = total + (costs.T if factor.variables[0] == self.variable else costs)
        return np.argmin(total, axis=-1)


class Elimination:
    """One problem: sizes[v] choices of every variable v, and the factors whose sum is to be the least. largest: the
    elements that a table may have. deadline: by `time.monotonic`, when `OutOfTime` is raised. order: in which variables
    are left out; the smallest table first where it is empty. What several questions about it have in common is
    computed once."""

    def __init__(
        self, sizes: Sequence[int], factors: Sequence[Factor], largest: int = LARGEST, deadline: float = math.inf,
        order: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.order = order
        self.sizes, self.largest, self.deadline = list(sizes), largest, deadline
        self.given = list(factors)
        self.of: list[dict[int, Factor]] = [{} for _ in sizes]
        self.constant = 0.0
        self.exact = True
        self.buckets: list[Bucket] = []
        self._messages: dict[tuple[Any, ...], Table] = {}
        self._replaced: dict[tuple[int, ...], tuple[list[Factor], bool, list[Factor]]] = {}
        self._referenced: list[Table] = []
        self._reshaped: dict[tuple[int, tuple[bool, ...]], Table] = {}
        self._open: dict[int, list[Factor]] = {}

    def solve(self) -> Assignment:
        """The cheapest assignment, and the bound that was proved. Raises OutOfTime."""
        values = [0] * len(self.sizes)
        self.buckets = self._eliminate()
        self._read_back(self.buckets, values)
        if not self.exact:
            self._improve(values)
        return Assignment(tuple(values), self.cost(values), self.constant)

    def given_each(self, variable: int) -> list[Assignment]:
        """For every choice of one variable the cheapest assignment with it, and what is proved of those."""
        buckets = self._eliminate(variable)
        bounds = self.constant + sum((f.table for f in self.of[variable].values()), np.zeros(self.sizes[variable]))
        each = np.zeros((len(self.sizes), len(bounds)), int)
        each[variable] = np.arange(len(bounds))
        for bucket in reversed(buckets):
            each[bucket.variable] = bucket.best_of_each(each)
        assignments = each.T.tolist()
        for values in assignments if not self.exact else ():
            self._improve(values, variable)
        costs = self._cost_of_each(np.array(assignments).T)
        return [Assignment(tuple(values), float(cost), float(bound))
                for values, cost, bound in zip(assignments, costs, bounds, strict=True)]  # fmt: skip

    @staticmethod
    def _read_back(buckets: Sequence[Bucket], values: list[int]) -> None:
        for bucket in reversed(buckets):
            values[bucket.variable] = bucket.best(values)

    def _eliminate(self, variable: int = -1) -> list[Bucket]:
        """Leave out one variable after the other, all but `variable`."""
        self.of = [{} for _ in self.sizes]
        self.constant, self.exact, number = 0.0, True, 0
        if sum(table.size for table in self._messages.values()) > REMEMBERED:
            self._messages.clear()
            self._replaced.clear()
            self._referenced.clear()
        for factor in self._decidable(variable):
            if factor.variables:
                for v in factor.variables:
                    self.of[v][number] = factor
                number += 1
            else:
                self.constant += float(factor.table)
        buckets: list[Bucket] = []
        rank = {v: place for place, v in enumerate(self.order)}
        size_of = rank.__getitem__ if rank else self._size
        queue = [(size_of(v), v) for v in range(len(self.sizes)) if v != variable]
        heapq.heapify(queue)
        done = [v == variable for v in range(len(self.sizes))]
        while queue:
            if time.monotonic() > self.deadline:
                raise OutOfTime
            size, v = heapq.heappop(queue)
            if done[v]:
                continue
            now = size_of(v)
            if now != size:
                heapq.heappush(queue, (now, v))
                continue
            done[v] = True
            held = [self.of[v][key] for key in sorted(self.of[v])]
            around = sorted({w for factor in held for w in factor.variables} - {v})
            buckets.append(Bucket(v, held))
            for key in list(self.of[v]):
                for w in self.of[v][key].variables:
                    if w != v:
                        del self.of[w][key]
            found = self._replacement(v, held)
            buckets[-1].messages = tuple(found)
            for factor in found:
                if not factor.variables:
                    self.constant += float(factor.table)
                    continue
                for w in factor.variables:
                    self.of[w][number] = factor
                number += 1
            for w in around:
                heapq.heappush(queue, (size_of(w), w))
        return buckets

    def _decidable(self, variable: int) -> list[Factor]:
        """The factors given, without variables of one choice: a table has no more dimensions than NumPy knows."""
        kept = variable if variable >= 0 and self.sizes[variable] == 1 else -1
        if kept not in self._open:
            self._open[kept] = [self._reduced(factor, kept) for factor in self.given]
        return self._open[kept]

    def _reduced(self, factor: Factor, kept: int) -> Factor:
        """A factor without its variables of one choice, but for one that is kept."""
        open_ones = tuple(self.sizes[v] > 1 or v == kept for v in factor.variables)
        if all(open_ones):
            return factor
        key = (id(factor.table), open_ones)
        variables = tuple(v for v, is_open in zip(factor.variables, open_ones, strict=True) if is_open)
        if key not in self._reshaped:
            self._reshaped[key] = factor.table.reshape([self.sizes[v] for v in variables])
        return Factor(variables, self._reshaped[key])

    def cost(self, values: Sequence[int]) -> float:
        """What an assignment costs by the factors given."""
        return sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in self.given)

    def _cost_of_each(self, values: Table) -> Table:
        """The same of several assignments, the columns of `values`."""
        costs = np.zeros(values.shape[1])
        for factor in self.given:
            costs += factor.table[tuple(values[v] for v in factor.variables)]
        return costs

    def _size(self, v: int) -> int:
        """Elements of the table that arises where a variable is eliminated."""
        size = 1
        for w in {w for factor in self.of[v].values() for w in factor.variables}:
            size *= self.sizes[w]
        return size

    def _replacement(self, v: int, held: Sequence[Factor]) -> list[Factor]:
        """What takes the place of a variable's factors; remembered by these very factors. One elimination has most of
        them in common with the next, in which another variable is left over."""
        key = (v, *map(id, held))
        if key not in self._replaced:
            found, is_exact = self._without(v, held)
            self._replaced[key] = found, is_exact, list(held)  # whose ids are the key
        found, is_exact, _ = self._replaced[key]
        self.exact = self.exact and is_exact
        return found

    def _without(self, v: int, held: Sequence[Factor]) -> tuple[list[Factor], bool]:
        """The factors that take the place of those of a variable: one, or several where one would be too large. Whether
        it is one."""
        groups: list[list[Factor]] = []
        scopes: list[set[int]] = []
        for factor in sorted(held, key=lambda f: -f.table.size):
            for group, scope in zip(groups, scopes, strict=True):
                if math.prod(self.sizes[w] for w in scope.union(factor.variables)) <= self.largest:
                    group.append(factor)
                    scope.update(factor.variables)
                    break
            else:
                groups.append([factor])
                scopes.append(set(factor.variables))
        found = [Factor(tuple(sorted(scope - {v})), self._message(v, group, sorted(scope)))
                 for group, scope in zip(groups, scopes, strict=True)]  # fmt: skip
        return found or [Factor((), np.zeros(()))], len(groups) <= 1

    def _message(self, v: int, group: Sequence[Factor], scope: Sequence[int]) -> Table:
        """The least of a sum of factors over a variable; remembered by the tables and how they meet."""
        place = {w: i for i, w in enumerate(scope)}
        parts = sorted((id(f.table), tuple(place[w] for w in f.variables)) for f in group)
        key = (place[v], tuple(self.sizes[w] for w in scope), *parts)
        known = self._messages.get(key)
        if known is not None:
            return known
        total: Table = 0.0
        for variables, table in self._joined(group):
            shape = [1] * len(scope)
            for w in variables:
                shape[place[w]] = self.sizes[w]
            total = total + table.reshape(shape)
        self._referenced += [factor.table for factor in group]  # their ids are part of a key
        total = np.broadcast_to(total, [self.sizes[w] for w in scope])
        found = total.min(axis=place[v])
        self._messages[key] = found
        return found

    def _joined(self, group: Sequence[Factor]) -> list[tuple[tuple[int, ...], Table]]:
        """(variables, table): the sum of some factors in as few and small tables as may be: what has some variables of
        another is added to that first."""
        joined: list[tuple[tuple[int, ...], Table]] = []
        for factor in sorted(group, key=lambda f: f.table.size):
            table = factor.table
            for variables, other in [each for each in joined if set(each[0]) <= set(factor.variables)]:
                shape = [self.sizes[w] if w in variables else 1 for w in factor.variables]
                table = table + other.reshape(shape)
            joined = [each for each in joined if not set(each[0]) <= set(factor.variables)]
            joined.append((factor.variables, table))
        return joined

    def _improve(self, values: list[int], variable: int = -1) -> None:
        """Revisit single variables, all but `variable`, while that makes the assignment cheaper."""
        of: list[list[Factor]] = [[] for _ in self.sizes]
        for factor in self.given:
            for v in factor.variables:
                of[v].append(factor)
        for _ in range(ROUNDS):
            changed = False
            for v, factors in enumerate(of):
                if v == variable:
                    continue
                best = Bucket(v, factors).best(values) if factors else values[v]
                if best != values[v]:
                    before = self._around(factors, values)
                    old, values[v] = values[v], best
                    if self._around(factors, values) < before - 1e-9:
                        changed = True
                    else:
                        values[v] = old
            if not changed:
                return

    @staticmethod
    def _around(factors: Sequence[Factor], values: Sequence[int]) -> float:
        return sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in factors)


class Sums:
    """The factors of one sum. groups: every table with the variables of all factors that have it, a row each."""

    def __init__(self, factors: Sequence[Factor]) -> None:
        self.groups: list[tuple[Table, Any]] = []
        self.constant = 0.0
        tables: dict[int, tuple[Table, list[tuple[int, ...]]]] = {}
        for factor in factors:
            if factor.variables:
                tables.setdefault(id(factor.table), (factor.table, []))[1].append(factor.variables)
            else:
                self.constant += float(factor.table)
        self.groups = [(table, np.array(variables)) for table, variables in tables.values()]

    def total(self, values: Sequence[int]) -> float:
        """What an assignment comes to."""
        chosen = np.asarray(values)
        return self.constant + sum(float(np.add.reduce(table[tuple(chosen[own].T)])) for table, own in self.groups)

    def total_of_each(self, assignments: Sequence[Sequence[int]]) -> list[float]:
        """The same of several assignments, to the last bit."""
        chosen = np.asarray(assignments)
        totals = np.zeros(len(chosen))
        for table, own in self.groups:
            costs = np.ascontiguousarray(table[tuple(chosen[:, variables] for variables in own.T)])
            totals += np.add.reduce(costs, axis=1)  # along rows, as `total` adds one
        return [float(total) for total in self.constant + totals]
