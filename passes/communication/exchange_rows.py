"""Lets ranks exchange the rows that they look up, or add up, where whole tables would be gathered or reduced.

Input:  `%3 = Redistribute(%2)` from `(8) [0, -]` to `(8) [-, -]`, `%4 = TakeRows(%3, %places)` at `(8) [0, -]`
Output: `%4 = FetchRows(%2, %places) {mesh: (8), axes: (0)}`

Input:  `%4 = AddRows(%rows, %places)` at `(8) [-, -] sum[0]`, `%5 = Redistribute(%4)` to `(8) [0, -]`
Output: `%5 = SendRows(%rows, %places) {mesh: (8), axes: (0)}`

The same is done where the table is not gathered but lookups give partial sums, and where rows are gathered ahead of
their sum, if fewer bytes are sent so. A rule of factors cannot say it: the table's rows and its readers' lie along one
axis, and yet no rank has what it reads.
"""

from __future__ import annotations

import sys

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.base import OPENED, Pass
from mspc.passes.needs import GLOBAL

OPERATORS = "mspc.ops.nn.expert_rows"
"""The module of what this is about: a graph has no such operator where nothing has loaded it."""


@dataclass(frozen=True)
class ExchangeRows(Pass):
    """Exchange rows in the place of tables."""

    regions = OPENED
    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        return exchange(graph)


def exchange(graph: Graph, least: int = 1) -> bool:
    """Exchange rows where that spares so many bytes at least; whether anything has changed."""
    if OPERATORS not in sys.modules:
        return False
    from mspc.passes.communication.rows_by_places import exchange_rows  # late: few graphs have any

    return exchange_rows(graph, least)
