"""Minimisation of a sum of cost tables over the choices of variables, by bucket elimination.

The result is exact if the intermediate tables stay small. If one would be too large, its terms are minimised separately
("mini-buckets", Dechter and Rish 2003). The result is then a lower bound. The assignment that is read back with the
true costs, and improved one variable at a time, gives an upper bound.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass

Table = Any
"""An array of costs, one dimension per variable."""
LARGEST = 1 << 23
"""Default maximum number of elements of a table."""
ROUNDING = 1e-9
"""Relative difference of one cost summed in different orders."""
CACHED_ELEMENTS = 1 << 22
"""Maximum number of elements of the tables cached between eliminations of a problem."""
ROUNDS = 20
"""Number of passes over single variables if the elimination is not exact."""


@dataclass(frozen=True, eq=False)
class Factor:
    """Costs of the choices of some variables together. variables: ascending. table: one dimension per variable. Tables
    derived from a table that several factors share are computed once."""

    variables: tuple[int, ...]
    table: Table


def cost_of(factors: Sequence[Factor], values: Sequence[int]) -> float:
    """Return the sum of the costs of an assignment."""
    return sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in factors)


@dataclass(frozen=True)
class Assignment:
    """Choices with their cost. values: one choice per variable. cost: total. bound: lower bound of all assignments."""

    values: tuple[int, ...]
    cost: float
    bound: float

    @property
    def proven(self) -> float:
        """The bound, or the cost itself if both are equal up to rounding."""
        return self.cost if self.cost - self.bound <= ROUNDING * abs(self.cost) else self.bound


class OutOfTime(Exception):
    """A deadline has passed."""


class Bucket:
    """Factors that contained an eliminated variable. messages: the factors that replaced them."""

    def __init__(self, variable: int, factors: Sequence[Factor]) -> None:
        self.variable, self.factors = variable, tuple(factors)
        self.messages: tuple[Factor, ...] = ()

    def best(self, values: list[int]) -> int:
        """Return the cheapest choice of the variable, given the choices of the other variables."""
        total: Table = 0.0
        for factor in self.factors:
            place = tuple(slice(None) if v == self.variable else values[v] for v in factor.variables)
            total = total + factor.table[place]
        return int(np.argmin(total))

    def best_choices(self, values: Table) -> Table:
        """Return the cheapest choices for several assignments, the columns of `values`."""
        total: Table = 0.0
        for factor in self.factors:
            place = tuple([slice(None) if v == self.variable else values[v] for v in factor.variables])
            costs = factor.table[place]  # NumPy puts the choices last, unless they are the first index
            total = total + (costs.T if factor.variables[0] == self.variable else costs)
        return np.argmin(total, axis=-1)


class Elimination:
    """Elimination of a problem with sizes[v] choices of variable v and factors whose sum is minimised. largest: maximum
    number of elements of a table. deadline: by `time.monotonic`, after which `OutOfTime` is raised. order: of the
    eliminated variables; if empty, the smallest table first. Results shared by several queries are cached."""

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
        """Return the cheapest assignment, with the proven bound. Raise OutOfTime after the deadline."""
        values = [0] * len(self.sizes)
        self.buckets = self._eliminate()
        self._read_back(self.buckets, values)
        if not self.exact:
            self._improve(values)
        return Assignment(tuple(values), self.cost(values), self.constant)

    def min_marginals(self, variable: int) -> list[Assignment]:
        """Return, for every choice of one variable, the cheapest assignment with it and its bound."""
        buckets = self._eliminate(variable)
        bounds = self.constant + sum((f.table for f in self.of[variable].values()), np.zeros(self.sizes[variable]))
        each = np.zeros((len(self.sizes), len(bounds)), int)
        each[variable] = np.arange(len(bounds))
        for bucket in reversed(buckets):
            each[bucket.variable] = bucket.best_choices(each)
        assignments = each.T.tolist()
        for values in assignments if not self.exact else ():
            self._improve(values, variable)
        costs = self._costs(np.array(assignments).T)
        return [Assignment(tuple(values), float(cost), float(bound))
                for values, cost, bound in zip(assignments, costs, bounds, strict=True)]  # fmt: skip

    @staticmethod
    def _read_back(buckets: Sequence[Bucket], values: list[int]) -> None:
        for bucket in reversed(buckets):
            values[bucket.variable] = bucket.best(values)

    def _eliminate(self, variable: int = -1) -> list[Bucket]:
        """Eliminate all variables except `variable`."""
        self.of = [{} for _ in self.sizes]
        self.constant, self.exact, number = 0.0, True, 0
        if sum(table.size for table in self._messages.values()) > CACHED_ELEMENTS:
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
        """Return the factors without variables of one choice, because NumPy limits the number of dimensions."""
        kept = variable if variable >= 0 and self.sizes[variable] == 1 else -1
        if kept not in self._open:
            self._open[kept] = [self._reduced(factor, kept) for factor in self.given]
        return self._open[kept]

    def _reduced(self, factor: Factor, kept: int) -> Factor:
        """Return a factor without its variables of one choice, except `kept`."""
        open_ones = tuple(self.sizes[v] > 1 or v == kept for v in factor.variables)
        if all(open_ones):
            return factor
        key = (id(factor.table), open_ones)
        variables = tuple(v for v, is_open in zip(factor.variables, open_ones, strict=True) if is_open)
        if key not in self._reshaped:
            self._reshaped[key] = factor.table.reshape([self.sizes[v] for v in variables])
        return Factor(variables, self._reshaped[key])

    def cost(self, values: Sequence[int]) -> float:
        """Return the cost of an assignment by the given factors."""
        return cost_of(self.given, values)

    def _costs(self, values: Table) -> Table:
        """Return the costs of several assignments, the columns of `values`."""
        costs = np.zeros(values.shape[1])
        for factor in self.given:
            costs += factor.table[tuple(values[v] for v in factor.variables)]
        return costs

    def _size(self, v: int) -> int:
        """Return the number of elements of the table that eliminating a variable creates."""
        size = 1
        for w in {w for factor in self.of[v].values() for w in factor.variables}:
            size *= self.sizes[w]
        return size

    def _replacement(self, v: int, held: Sequence[Factor]) -> list[Factor]:
        """Return the factors that replace those of a variable, cached by the identity of those. Eliminations that keep
        different variables share most of them."""
        key = (v, *map(id, held))
        if key not in self._replaced:
            found, is_exact = self._without(v, held)
            self._replaced[key] = found, is_exact, list(held)  # their ids are the key
        found, is_exact, _ = self._replaced[key]
        self.exact = self.exact and is_exact
        return found

    def _without(self, v: int, held: Sequence[Factor]) -> tuple[list[Factor], bool]:
        """Return (the factors that replace those of a variable, whether it is a single one); several if one would be
        too large."""
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
        """Return the minimum of a sum of factors over a variable, cached by the tables and their shared dimensions."""
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
        """Return (variables, table) pairs whose sum is that of some factors, in few and small tables. A factor is first
        added to another that has all its variables."""
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
        """Improve an assignment one variable at a time, except `variable`, until it gets no cheaper."""
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
                    before = cost_of(factors, values)
                    old, values[v] = values[v], best
                    if cost_of(factors, values) < before - 1e-9:
                        changed = True
                    else:
                        values[v] = old
            if not changed:
                return


class Sums:
    """Factors of one sum. groups: every table with the variables of the factors that share it, one row per factor."""

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
        """Return the sum for an assignment."""
        chosen = np.asarray(values)
        return self.constant + sum(float(np.add.reduce(table[tuple(chosen[own].T)])) for table, own in self.groups)

    def totals(self, assignments: Sequence[Sequence[int]]) -> list[float]:
        """Return the sums for several assignments, bit for bit equal to `total`."""
        chosen = np.asarray(assignments)
        totals = np.zeros(len(chosen))
        for table, own in self.groups:
            costs = np.ascontiguousarray(table[tuple(chosen[:, variables] for variables in own.T)])
            totals += np.add.reduce(costs, axis=1)  # along rows, as `total` adds one
        return [float(total) for total in self.constant + totals]


# Labels find assignments within limits by a beam search over the variables in the reverse order of their elimination.
# Each elimination gives a lower bound for every partial assignment:
# one for the costs, one for the costs with a price for the limited sum, one for every limited sum. A partial assignment
# ("label") is dropped if it cannot be within a limit, if it cannot be better than the best known, or if another one
# with the same open decisions is better in all respects (Handler and Zang 1980). The most promising of the rest are
# continued; the least bound of those that were dropped for their number remains to be proven.


COMPARED_FACTOR = 8
"""Number of labels compared with each other, as a multiple of the beam width."""
MAX_COMBINATIONS = 1 << 62
"""Maximum number of combinations that are numbered directly."""


class Labels:
    """Beam search over several eliminations in one order.

    plain: elimination of the costs. priced: elimination of the costs with a price for each limited sum. rows:
    eliminations of each limited sum by itself.
    """

    def __init__(
        self, plain: Elimination, priced: Elimination, prices: Sequence[float], rows: Sequence[Elimination],
        limits: Sequence[float],
    ) -> None:  # fmt: skip
        self.problems = [plain, priced, *rows]
        self.prices, self.limits = np.array(prices), np.array(limits)
        steps = reversed([*zip(*(problem.buckets for problem in self.problems), strict=True)])
        self.steps: list[tuple[Bucket, ...]] = [buckets for buckets in steps if priced.sizes[buckets[0].variable] > 1]
        self.sizes = plain.sizes
        self._open: list[list[int]] = []
        """For every step, the decided variables that occur in a table of a later step."""
        open_ones: set[int] = set()
        for buckets in reversed(self.steps):
            self._open.append(sorted(open_ones))
            for bucket in buckets:
                for factor in (*bucket.factors, *bucket.messages):
                    open_ones.update(factor.variables)
            open_ones.discard(buckets[0].variable)
        self._open.reverse()

    def search(self, best: float, enough: float, width: int) -> tuple[tuple[int, ...] | None, float, float]:
        """Return (values, cost, bound): the cheapest assignment found below `best`, or None, and a lower bound, at most
        `best`, of all assignments within the limits. enough: share of `best` that an assignment must save. width: beam
        width."""
        count, owed = len(self.problems), float(self.prices @ self.limits)
        values: dict[int, Any] = {}
        sums: Any = np.array([[problem.constant] for problem in self.problems])
        trail: list[tuple[Any, Any]] = []
        lost = math.inf
        for step, buckets in enumerate(self.steps):
            v = buckets[0].variable
            added = np.empty((count, sums.shape[1], self.sizes[v]))
            for i, bucket in enumerate(buckets):
                added[i] = self._added(bucket, values)
            total = sums[:, :, None] + added
            bounds = np.maximum(total[0], total[1] - owed)
            fits = (total[2:] <= self.limits[:, None, None] * (1 + 1e-12)).all(axis=0)
            good = fits & (bounds < best * (1 - enough))
            if (fits & ~good).any():
                lost = min(lost, float(bounds[fits & ~good].min()))
            label, choice = np.nonzero(good)
            if not len(label):
                return None, best, min(best, lost)
            if len(label) > COMPARED_FACTOR * width:  # too many to compare
                order = np.argpartition(bounds[label, choice], COMPARED_FACTOR * width)
                lost = min(lost, float(bounds[label, choice][order[COMPARED_FACTOR * width :]].min()))
                order = np.sort(order[: COMPARED_FACTOR * width])
                label, choice = label[order], choice[order]
            bounds, sums = bounds[label, choice], total[:, label, choice]
            known = {w: values[w][label] if w != v else choice for w in self._open[step]}
            if len(label) > width:
                selected = self._undominated(known, sums)
                if len(selected) > width:
                    selected, left = self._select(selected, bounds, sums, width)
                    lost = min(lost, left)
                label, choice, sums = label[selected], choice[selected], sums[:, selected]
                known = {w: found[selected] for w, found in known.items()}
            values = known
            trail.append((label, choice))
        found = int(np.argmin(sums[0]))
        cost = float(sums[0, found])
        if cost >= best:
            return None, best, min(best, lost)
        return self._traced(trail, found), cost, min(cost, lost)

    def _select(self, selected: Any, bounds: Any, sums: Any, width: int) -> tuple[Any, float]:
        """Return (labels, bound of the best dropped label). Half of the labels are those with the smallest bounds. The
        others have the smallest bounds among labels with about the same bytes, so that some of them leave room for the
        last decisions."""
        selected = selected[np.argsort(bounds[selected], kind="stable")]
        half = width // 2
        rest = selected[half:]
        held = self.prices @ sums[2:, rest] if self.prices.any() else sums[2, rest]
        share = np.empty(len(rest), np.int64)
        share[np.argsort(held, kind="stable")] = np.arange(len(rest)) * half // len(rest)
        first = np.unique(share, return_index=True)[1]
        left = bounds[np.delete(rest, first)]
        return np.sort(np.concatenate([selected[:half], rest[first]])), float(left.min()) if len(left) else math.inf

    def _traced(self, trail: Sequence[tuple[Any, Any]], label: int) -> tuple[int, ...]:
        """Return the choices along the trail of a label."""
        values = [0] * len(self.sizes)
        for buckets, (parents, choices) in zip(reversed(self.steps), reversed(trail), strict=True):
            values[buckets[0].variable] = int(choices[label])
            label = int(parents[label])
        return tuple(values)

    def _added(self, bucket: Bucket, values: Mapping[int, Any]) -> Any:
        """Return [label, choice]: increase of a label's bound by the decision on a bucket's variable."""
        found: Any = 0.0
        for factor in bucket.factors:
            place = factor.variables.index(bucket.variable)
            others = tuple(values[v] for v in factor.variables if v != bucket.variable)
            found = found + np.moveaxis(factor.table, place, -1)[others]
        for message in bucket.messages:
            found = found - message.table[tuple(values[v] for v in message.variables)][..., None]
        return found

    def _undominated(self, values: Mapping[int, Any], sums: Any) -> Any:
        """Return the labels that no other label with the same open decisions dominates in cost and all rows."""
        groups, combinations = np.zeros(sums.shape[1], np.int64), 1
        for v, own in values.items():
            if combinations * self.sizes[v] > MAX_COMBINATIONS:
                groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
                combinations = len(groups)
            groups, combinations = groups * self.sizes[v] + own, combinations * self.sizes[v]
        first, *rest = sums[2:]
        order = np.lexsort((first, sums[0], groups))
        count = len(order)
        same = np.concatenate([[False], groups[order][1:] == groups[order][:-1]])
        behind = np.cumsum(~same) * (count + 1)
        by_rank = np.argsort(first[order], kind="stable")
        rank = np.empty(count, np.int64)
        rank[by_rank] = np.arange(count)
        low = np.minimum.accumulate(rank - behind)
        before = np.concatenate([[0], low[:-1]])
        dominated = np.concatenate([[False], before[1:] < (rank - behind)[1:]])
        rival = by_rank[np.clip(before + behind, 0, count - 1)]
        dominated &= same
        for row in rest:
            dominated &= row[order][rival] <= row[order]
        return np.sort(order[~dominated])
