"""Makes factors of costs so that those alike have one table between them: what follows from it is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.search.solver.elimination import Factor, Table


class FactorTables:
    """The tables of one problem, by what they are of."""

    def __init__(self) -> None:
        self._tables: dict[Any, Table] = {}

    def made(self, variables: tuple[int, ...], key: Any, made: Callable[[], Table]) -> Factor:
        """A factor; alike ones have one table between them. Of a variable that is in it twice the diagonal counts."""
        order = sorted(range(len(variables)), key=lambda i: (variables[i], i))
        key = (key, tuple(order), tuple(variables.index(v) for v in variables))

        def ordered() -> Table:
            table = np.transpose(made(), order)
            for i in range(len(order) - 1, 0, -1):
                if variables[order[i]] == variables[order[i - 1]]:
                    table = np.moveaxis(np.diagonal(table, axis1=i - 1, axis2=i), -1, i - 1)
            return np.ascontiguousarray(table)

        return Factor(tuple(dict.fromkeys(variables[i] for i in order)), self.table(key, ordered))

    def table(self, key: Any, made: Callable[[], Table]) -> Table:
        """The one table of all factors that have a key."""
        if key not in self._tables:
            self._tables[key] = made()
        return self._tables[key]
