"""The cheapest assignment whose memory is within a limit.

Memory gets a price, which is the best bound of its kind where the cheapest assignments under it are one within the
limit and one over it (Lagrange's multiplier; Everett 1963). Between the two lies what is looked for: `Labels` reads
the eliminations back with many assignments at once, which finds it, and proves more than the price does.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mspc.ir.diagnostics import MspcError
from mspc.passes.search.elimination import Assignment, Elimination, Factor, OutOfTime, Table
from mspc.passes.search.labels import Labels
from mspc.passes.search.memory import Memory
from mspc.passes.search.terms import LEAST

LIMITED = 1 << 20
"""Elements of a table at most: there are many eliminations to be done, and what they leave open labels decide."""
QUICK = 1 << 10
"""Elements of a table where time may run out."""
PRICES = 6
"""How many prices of memory are tried, for a row in all."""
LEXICAL = 1e4
"""The price under which memory counts first and costs decide between equals."""
CLOSE = 0.005
"""The share of a plan's cost that more work need not save."""
WIDTHS = (64, 512, 2048)
"""How many assignments are read back at once, first and where more is to be proved."""
EFFORT = 500_000
"""Labels by decisions that more than the first width may look at."""
NARROW = 8
"""The same for the first assignment within a limit."""
ENOUGH = 0.01
"""The share of a plan's cost that wider readings need not save."""
TRIALS = 5
"""How often less is looked for where the peak, as it is foreseen, is over the limit, and then more again."""
LITTLE_MORE = (1.02, 1.1, 1.25)
"""What the least may be exceeded by in a row where the peak, which is not known ahead, may be less for it."""
SAME = 1e-9
"""The share by which sums that are the same may differ."""
MIXES = ((1.0, 0.0), (0.0, 1.0))
"""Shares of the two rows of memory under which the least is looked for."""


@dataclass(frozen=True)
class _Priced:
    """An assignment under a price. cost: without memory. rows: bytes of either row."""

    assignment: Assignment
    elimination: Elimination
    cost: float
    rows: tuple[float, ...]


class Limited:
    """One problem: choices of every variable, factors of the costs, and `memory`, which is limited."""

    def __init__(
        self, sizes: Sequence[int], factors: Sequence[Factor], memory: Memory, largest: int, seconds: float = 0
    ) -> None:
        self.sizes, self.factors, self.memory, self.largest = list(sizes), list(factors), memory, min(largest, LIMITED)
        self.least: list[Elimination] = []
        self.deadline = time.monotonic() + seconds if seconds else math.inf
        self.order: list[int] = []
        self.known: tuple[list[tuple[float, _Priced]], ...] = ([], [])
        """What prices of either row have led to."""

    def solve(self, limit: int) -> Assignment:
        """The cheapest assignment within a limit of bytes, or the one that takes the least for `LEAST`, or where none
        seems to be within.

        Raises:
            MspcError: there is surely none.
        """
        first = self._at((0.0, 0.0))
        self.least = [self._least_of(row) for row in self.memory.rows]
        if limit == LEAST:
            return self._smallest(first)
        least = math.ceil(max(row.constant for row in self.least))
        if least > limit:
            raise MspcError(
                f"no plan needs at most {limit} bytes of memory on a rank: the least is {least}",
                notes=["take more ranks, or allow more memory"],
            )
        return self._at_peak(first, limit) or self._smallest(first)

    def _at_peak(self, first: _Priced, limit: int) -> Assignment | None:
        """The best whose peak, as it is foreseen, is within a limit: the rows are held to less until it is, and then to
        as much more as may be."""
        low, high, within = 0, limit + 1, limit
        best: Assignment | None = None
        cheaper = 0.0
        for _ in range(TRIALS):
            found = self._within(first, within)
            over = 1.0 if found is None else self.memory.peak(found.values) - limit
            if found is not None and over <= 0:
                low, best = within, found if best is None or found.cost < best.cost else best
                if within == limit or best.cost - cheaper <= CLOSE * best.cost:
                    break
            elif found is not None:
                high, cheaper = min(within, math.ceil(max(self.memory.held(found.values)))), found.cost
            else:
                high = within
            if best is not None or found is None:
                within = (low + high) // 2
            else:
                within = high - math.ceil(over)
            if within <= low or high - low <= CLOSE * limit:
                break
        return best

    def _smallest(self, first: _Priced) -> Assignment:
        """The assignment that takes the least at the peak, of those with the least in one row or the other and of
        those with little more."""
        priced = [self._at((LEXICAL * a, LEXICAL * b)) for a, b in MIXES]
        found = [Assignment(each.assignment.values, each.cost, first.assignment.bound) for each in priced]
        for share in LITTLE_MORE:
            near = self._within(first, math.ceil(min(max(each.rows) for each in priced) * share))
            found += [near] if near is not None else []
        return min(found, key=lambda each: (self.memory.peak(each.values), each.cost))

    def _within(self, first: _Priced, limit: int) -> Assignment | None:
        """The best whose rows are within a limit; None where none is found."""
        if max(first.rows) <= limit:
            return first.assignment
        if any(least.constant > limit for least in self.least):
            return None
        row = max((0, 1), key=lambda i: first.rows[i])
        best = self._fitting(row, limit)
        if best is None:
            values, _, _ = self._labels(first, row, limit)[1].search(math.inf, 0.0, NARROW)
            if values is None:
                return None
            best = Assignment(values, 0.0, 0.0)
        self._find_prices(first, best, row, limit)
        best = min([best, self._fitting(row, limit) or best], key=self._cost)
        values, cost = best.values, self._cost(best)
        bound, labels = self._labels(first, row, limit)
        for width in WIDTHS:
            close = CLOSE if width == WIDTHS[0] else ENOUGH
            wide = width > WIDTHS[0] and width * len(labels.steps) > EFFORT
            if wide or cost - bound <= close * cost or time.monotonic() > self.deadline:
                break
            better, cost, proved = labels.search(cost, CLOSE / 2, width)
            values, bound = better or values, max(bound, min(proved, cost))
        return Assignment(values, cost, min(bound, cost))

    def _fitting(self, row: int, limit: int) -> Assignment | None:
        """The cheapest within a limit of what prices have led to."""
        found = [each.assignment for _, each in self.known[row] if max(each.rows) <= limit]
        return min(found, key=self._cost, default=None)

    def _labels(self, first: _Priced, row: int, limit: int) -> tuple[float, Labels]:
        """What prices prove of a limit at most, and the reading back of the elimination that proves it."""
        price, best = max(((0.0, first), *self.known[row]), key=lambda each: each[1].assignment.bound - each[0] * limit)
        prices = (price, 0.0) if row == 0 else (0.0, price)
        labels = Labels(first.elimination, best.elimination, prices, self.least, (limit, limit))
        return best.assignment.bound - price * limit, labels

    def _find_prices(self, first: _Priced, within: Assignment, row: int, limit: int) -> None:
        """Look for the price that proves the most, between an assignment over the limit and one within it."""
        known = [(each.cost, each.rows[row]) for _, each in self.known[row]]
        over = min([(first.cost, first.rows[row]), *known], key=lambda each: (each[1] <= limit, each[1]))
        below = max([(self._cost(within), self.memory.held(within.values)[row]), *known],
                    key=lambda each: (each[1] <= limit, each[1], -each[0]))  # fmt: skip
        while len(self.known[row]) < PRICES and over[1] > below[1] and time.monotonic() <= self.deadline:
            price = (below[0] - over[0]) / (over[1] - below[1])
            found = self._at((price, 0.0) if row == 0 else (0.0, price))
            self.known[row].append((price, found))
            if found.cost + price * found.rows[row] >= (over[0] + price * over[1]) * (1 - SAME):
                break  # no assignment lies below the line between the two
            if found.rows[row] > limit:
                over = found.cost, found.rows[row]
            else:
                below = found.cost, found.rows[row]

    def _cost(self, assignment: Assignment) -> float:
        """What an assignment costs without a price for memory."""
        return sum(float(f.table[tuple(assignment.values[v] for v in f.variables)]) for f in self.factors)

    def _least_of(self, row: Sequence[Factor]) -> Elimination:
        """The elimination of a row of memory alone."""
        found = Elimination(self.sizes, row, self.largest, order=self.order)
        found.solve()
        return found

    def _at(self, prices: Sequence[float]) -> _Priced:
        """The cheapest assignment where a byte of either row costs something."""
        found, elimination = self._solved(self._priced(prices))
        if not self.order:
            self.order = [bucket.variable for bucket in elimination.buckets]
        rows = self.memory.held(found.values)
        cost = found.cost - sum(p * total for p, total in zip(prices, rows, strict=True))
        return _Priced(found, elimination, cost, rows)

    def _priced(self, prices: Sequence[float]) -> list[Factor]:
        tables: dict[tuple[int, float], Table] = {}
        found = list(self.factors)
        for factor, price in self.memory.shares(prices):
            key = (id(factor.table), price)
            if key not in tables:
                tables[key] = factor.table * price
            found.append(Factor(factor.variables, tables[key]))
        return found

    def _solved(self, factors: list[Factor]) -> tuple[Assignment, Elimination]:
        """The cheapest assignment, or where there is a deadline and it comes too soon what small tables find."""
        whole = Elimination(self.sizes, factors, self.largest, self.deadline, self.order)
        if self.deadline == math.inf:
            return whole.solve(), whole
        quick = Elimination(self.sizes, factors, QUICK, order=self.order)
        found = quick.solve()
        with contextlib.suppress(OutOfTime):
            return whole.solve(), whole
        return found, quick
