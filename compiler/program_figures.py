"""Figures of a compiled program: bytes sent in a step and floating-point operations."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.analysis.cost import nodes
from mspc.analysis.cost.nodes import sent_bytes
from mspc.compiler.driver import Compiled
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import nodes_with_times

LOOKED_AT = 1024
"""Number of ranks that are examined, from the first."""


@dataclass(frozen=True)
class Sent:
    """Bytes sent per step. most: by the rank `rank`, the first of those that send the most. mean: over all ranks."""

    most: float
    rank: int
    mean: float


def sent_by_ranks(compiled: Compiled) -> Sent:
    """Return the bytes sent by the ranks. Ranks of one kind count as the first of them: they differ only in rank
    numbers and offsets. Raise MspcError if no rank's graph can be made."""
    found = sent_by_each(compiled, range(min(LOOKED_AT, compiled.config.all_ranks)))
    most = max(found)
    return Sent(most, found.index(most), sum(found) / len(found))


def sent_by_each(compiled: Compiled, ranks: Iterable[int]) -> list[float]:
    """Return the bytes sent by each of these ranks, computed as above. Raise MspcError as above."""
    known: dict[int, float] = {}
    found: list[float] = []
    for rank in ranks:
        kind = compiled.rank_graphs.kind(rank, ())
        nbytes = known.get(kind) if kind is not None else None
        if nbytes is None:
            every = nodes_with_times(compiled.rank_graph(rank))
            nbytes = sum(sent_bytes(node) * times.count for node, times in every)
        if kind is not None:
            known[kind] = nbytes
        found.append(nbytes)
    return found


def operations_of(compiled: Compiled, rank: int) -> tuple[float, float, float, float]:
    """Return floating-point operations per step: (of all ranks together, the same with recomputation, of `rank`, the
    same with recomputation).

    A computation repeated on several ranks counts once for all ranks together. If each rank has a graph of its own, all
    are assumed to have equal work.
    """
    own = nodes.operations_of(compiled.rank_graph(rank))
    together = nodes.operations_of(compiled.graph) if compiled.config.sharded else own.times(compiled.config.ranks)
    return (*together, *own)
