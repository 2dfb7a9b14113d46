"""Adds up factors for complete assignments, all factors of one table at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.search.solver.elimination import Factor, Table


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
        return self.constant + sum(float(table[tuple(chosen[own].T)].sum()) for table, own in self.groups)
