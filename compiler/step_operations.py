"""Says how many floating-point operations a compiled step has, on one rank and on all."""

from __future__ import annotations

from mspc.analysis.cost import nodes
from mspc.compiler.driver import Compiled


def operations_of(compiled: Compiled, rank: int) -> tuple[float, float, float, float]:
    """(of all ranks together, the same with what is recomputed, of `rank`, the same with what it recomputes).

    What several ranks compute alike counts once for all ranks together. Where each rank has a graph of its own, all
    are taken to have as much to do.
    """
    own = nodes.operations_of(compiled.rank_graph(rank))
    together = nodes.operations_of(compiled.graph) if compiled.config.sharded else own.times(compiled.config.ranks)
    return (*together, *own)
