"""Finds assignments within limits, by reading an elimination back with many assignments at once.

Variables are decided on in the reverse order of their elimination. What the elimination has left behind says of every
partial assignment the least that it can come to, exactly or as a lower bound: one elimination for the costs, one for
the costs with a price for what is limited, one for every limited sum. A partial assignment ("label") is given up where
it cannot be within a limit, where it cannot be better than the best that is known, or where another one with the same
open decisions is better in all respects (Handler and Zang 1980). Of the rest the most promising are continued; the
least bound of those that were given up for their number is what remains to be proved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.search.solver.elimination import Bucket, Elimination

SPARE = 8
"""How many times as many as go on are compared with each other."""
MOST = 1 << 62
"""Combinations up to which a number names each."""


class Labels:
    """The reading back of several eliminations in one order.

    plain: the elimination of the costs; priced: that with a price for each limited sum; rows: those of the limited sums
    alone.
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
        self._open = self._open_variables()

    def search(self, best: float, enough: float, width: int) -> tuple[tuple[int, ...] | None, float, float]:
        """(values, cost, bound): the cheapest assignment that was found to cost less than `best`, None where there is
        none, and what no assignment within the limits costs less than, `best` where that is less.

        Args:
            enough: the share of `best` that an assignment must save. width: labels that go on from step to step.
        """
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
            if len(label) > SPARE * width:  # so many are not even compared
                order = np.argpartition(bounds[label, choice], SPARE * width)
                lost = min(lost, float(bounds[label, choice][order[SPARE * width :]].min()))
                order = np.sort(order[: SPARE * width])
                label, choice = label[order], choice[order]
            bounds, sums = bounds[label, choice], total[:, label, choice]
            known = {w: values[w][label] if w != v else choice for w in self._open[step]}
            if len(label) > width:
                selected = self._undominated(known, sums)
                if len(selected) > width:
                    selected, left = self._chosen(selected, bounds, sums, width)
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

    def _chosen(self, selected: Any, bounds: Any, sums: Any, width: int) -> tuple[Any, float]:
        """(labels, bound of the best that is left out): half of them with the least bounds, the others with the least
        of those that hold about as much, so that some are there for what is left at the end."""
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
        """The choices that have led to a label."""
        values = [0] * len(self.sizes)
        for buckets, (parents, choices) in zip(reversed(self.steps), reversed(trail), strict=True):
            values[buckets[0].variable] = int(choices[label])
            label = int(parents[label])
        return tuple(values)

    def _open_variables(self) -> list[list[int]]:
        """For every step the variables that are decided then and are in a table of a later one."""
        found: list[list[int]] = []
        open_ones: set[int] = set()
        for buckets in reversed(self.steps):
            found.append(sorted(open_ones))
            for bucket in buckets:
                for factor in (*bucket.factors, *bucket.messages):
                    open_ones.update(factor.variables)
            open_ones.discard(buckets[0].variable)
        return list(reversed(found))

    def _added(self, bucket: Bucket, values: Mapping[int, Any]) -> Any:
        """[label, choice]: what deciding on a bucket's variable adds to the least that a label comes to."""
        found: Any = 0.0
        for factor in bucket.factors:
            place = factor.variables.index(bucket.variable)
            others = tuple(values[v] for v in factor.variables if v != bucket.variable)
            found = found + np.moveaxis(factor.table, place, -1)[others]
        for message in bucket.messages:
            found = found - message.table[tuple(values[v] for v in message.variables)][..., None]
        return found

    def _undominated(self, values: Mapping[int, Any], sums: Any) -> Any:
        """The labels that no other with the same open decisions is as cheap as and holds as little in every row."""
        groups, combinations = np.zeros(sums.shape[1], np.int64), 1
        for v, own in values.items():
            if combinations * self.sizes[v] > MOST:
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
