"""Lets GPUs exchange rows instead of tables, as `exchange_rows` does, if that saves many bytes.

The hosts read the numbers of rows for each rank while a step runs, and
launch them in rounds: that takes time, and splits the step into two CUDA graphs.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.passes.base import GLOBAL, OPENED, Pass
from mspc.passes.communication.exchange_rows import exchange

MIN_SAVED_BYTES = 64 << 20
"""Bytes to save at least: those that a GPU sends in the time of an exchange without rows."""


class ExchangeLargeTables(Pass):
    """Exchange rows instead of gathering large tables. least: the bytes that an exchange must save."""

    least: int = MIN_SAVED_BYTES

    regions = OPENED
    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        return exchange(graph, self.least)
