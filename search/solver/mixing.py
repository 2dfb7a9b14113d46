"""Finds assignments between two others: where these differ in parts that do not concern each other, each part may be
as in either.

What the parts change adds up, so that the best choice of them within a limit is a knapsack (Kellerer, Pferschy and
Pisinger 2004), which is filled in steps of a small share of what must be saved. Equal blocks of a network are such
parts, and so are most decisions on computing a cell again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.search.solver.elimination import Sums

STEPS = 4096
"""Into how many parts what must be saved is divided."""


@dataclass(frozen=True)
class CostedAssignment:
    """An assignment, what it costs, and the bytes of every row."""

    values: tuple[int, ...]
    cost: float
    rows: tuple[float, ...]


@dataclass(frozen=True)
class VariableGroup:
    """Variables in which two assignments differ, and what it changes to take them as the second has them."""

    variables: tuple[int, ...]
    cost: float
    rows: tuple[float, ...]


class Mixing:
    """One problem. costs, rows: the sum that is to be the least, and those that are limited. early: a place for some
    variables; of parts that are as good the first one is changed."""

    def __init__(self, costs: Sums, rows: Sequence[Sums], early: Mapping[int, int]) -> None:
        self.sums = [costs, *rows]
        self.early = early
        self._parts: dict[tuple[tuple[int, ...], tuple[int, ...]], list[VariableGroup]] = {}

    def between(
        self, over: CostedAssignment, within: CostedAssignment, row: int, limits: Sequence[float]
    ) -> CostedAssignment | None:
        """The best mixture of two plans that is within limits; None where the parts do not make one. row: in which the
        first is over its limit."""
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
        """The parts in which two assignments differ."""
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
        """The cheapest parts that save so many bytes together; none where all do not. Of equal ones the first."""
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
