"""Assignments under limits, by reading an elimination back with many assignments at once.

Variables are decided on in the reverse order of their elimination. What the elimination has left behind says of every
partial assignment the least that it can come to, exactly or as a lower bound: one elimination for the costs, one for
the costs with a price for what is limited, one for every limited sum. A partial assignment ("label") is given up where
it cannot keep a limit, where it cannot be better than the best that is known, or where another one with the same open
decisions is better in all respects (Handler and Zang 1980). Of the rest the most promising go on; the least bound of
those that were given up for their number is what remains to be proved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.passes.search.elimination import Bucket, Elimination, Factor

MOST = 1 << 62
"""Combinations up to which a number names each."""


class Labels:
    """The reading back of several eliminations in one order.

    costs: eliminations whose sums, less the offset of each, are lower bounds of an assignment's cost; the first has the
    costs alone. rows: those of the limited sums, each with its limit.
    """

    def __init__(
        self, costs: Sequence[tuple[Elimination, float]], rows: Sequence[tuple[Elimination, float]]
    ) -> None:
        self.problems = [*(problem for problem, _ in costs), *(problem for problem, _ in rows)]
        self.offsets = np.array([offset for _, offset in costs])
        self.limits = np.array([limit for _, limit in rows])
        self.steps = list(reversed([*zip(*(problem.buckets for problem in self.problems), strict=True)]))
        self.sizes = self.problems[0].sizes
        self._open = self._open_variables()
        self._moved: dict[tuple[int, int], tuple[Any, Any]] = {}

    def search(self, best: float, enough: float, width: int) -> tuple[tuple[int, ...] | None, float, float]:
        """(values, cost, bound): the cheapest assignment that was found to cost less than `best`, None where there is
        none, and what no assignment within the limits costs less than, `best` where that is less.

        Args:
            enough: the share of `best` that an assignment must save. width: labels that go on from step to step.
        """
        count = len(self.problems)
        values = np.zeros((len(self.sizes), 1), np.int16)
        sums = np.array([[problem.constant] for problem in self.problems])
        costs = len(self.offsets)
        lost = math.inf
        for step, buckets in enumerate(self.steps):
            v = buckets[0].variable
            added = np.empty((count, values.shape[1], self.sizes[v]))
            for i, bucket in enumerate(buckets):
                added[i] = self._added(bucket, values)
            total = sums[:, :, None] + added
            bounds = (total[:costs] - self.offsets[:, None, None]).max(axis=0)
            fits = (total[costs:] <= self.limits[:, None, None] * (1 + 1e-12)).all(axis=0)
            good = fits & (bounds < best * (1 - enough))
            if (fits & ~good).any():
                lost = min(lost, float(bounds[fits & ~good].min()))
            label, choice = np.nonzero(good)
            if not len(label):
                return None, best, min(best, lost)
            values, sums, bounds = values[:, label], total[:, label, choice], bounds[label, choice]
            values[v] = choice
            if len(label) > width:
                kept = self._undominated(self._open[step], values, sums)
                values, sums, bounds = values[:, kept], sums[:, kept], bounds[kept]
            if len(bounds) > width:
                order = np.argsort(bounds, kind="stable")
                lost = min(lost, float(bounds[order[width]]))
                order = np.sort(order[:width])
                values, sums, bounds = values[:, order], sums[:, order], bounds[order]
        found = int(np.argmin(sums[0]))
        cost = float(sums[0, found])
        return tuple(int(value) for value in values[:, found]), cost, min(cost, lost)

    def _open_variables(self) -> list[list[int]]:
        """For every step the variables that are decided then and stand in a table of a later one."""
        found: list[list[int]] = []
        open_ones: set[int] = set()
        for buckets in reversed(self.steps):
            found.append(sorted(open_ones))
            for bucket in buckets:
                for factor in (*bucket.factors, *bucket.messages):
                    open_ones.update(factor.variables)
            open_ones.discard(buckets[0].variable)
        return list(reversed(found))

    def _added(self, bucket: Bucket, values: Any) -> Any:
        """[label, choice]: what deciding on a bucket's variable adds to the least that a label comes to."""
        found: Any = 0.0
        for factor in bucket.factors:
            table, others = self._along(factor, bucket.variable)
            found = found + table[self._place(others, values)]
        for message in bucket.messages:
            table = message.table.reshape(-1)
            found = found - table[self._place(message.variables, values)][:, None]
        return found

    def _along(self, factor: Factor, variable: int) -> tuple[Any, tuple[int, ...]]:
        """A factor's table as [others together, variable], and the others."""
        place = factor.variables.index(variable)
        key = (id(factor.table), place)
        if key not in self._moved:
            moved = np.ascontiguousarray(np.moveaxis(factor.table, place, -1))
            self._moved[key] = moved.reshape(-1, self.sizes[variable]), factor.table
        others = tuple(v for v in factor.variables if v != variable)
        return self._moved[key][0], others

    def _place(self, variables: Sequence[int], values: Any) -> Any:
        found: Any = np.zeros(values.shape[1], np.int64)
        for v in variables:
            found = found * self.sizes[v] + values[v]
        return found

    def _undominated(self, variables: Sequence[int], values: Any, sums: Any) -> Any:
        """The labels that no other with the same open decisions is as cheap as and holds as little in every row."""
        groups, combinations = np.zeros(values.shape[1], np.int64), 1
        for v in variables:
            if combinations * self.sizes[v] > MOST:
                groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
                combinations = len(groups)
            groups, combinations = groups * self.sizes[v] + values[v], combinations * self.sizes[v]
        groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        first, *rest = sums[len(self.offsets) :]
        order = np.lexsort((first, sums[0], groups))
        count = len(order)
        rank = np.empty(count, np.int64)
        rank[np.argsort(first[order], kind="stable")] = np.arange(count)
        low = np.minimum.accumulate(rank - groups[order] * (count + 1))
        before = np.concatenate([[0], low[:-1]])
        dominated = np.concatenate([[False], before[1:] < (rank - groups[order] * (count + 1))[1:]])
        same = np.concatenate([[False], groups[order][1:] == groups[order][:-1]])
        by_rank = np.argsort(rank)
        rival = by_rank[np.clip(before + groups[order] * (count + 1), 0, count - 1)]
        dominated &= same
        for row in rest:
            dominated &= row[order][rival] <= row[order]
        return np.sort(order[~dominated])
