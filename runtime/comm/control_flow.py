"""Ranks that meet inside of a node that runs graphs go the same way through it: the same branch, as many turns.

A rank that goes another way misses a meeting, and the others may take its next one for that. So whoever calls
collectives inside tells the ranks that it meets there, beside the graph's own meetings, which way it goes: ahead of a
branch and of a counted loop, and behind a loop that a condition ends. One small message a run, none a turn. A rank that
waits there in vain, as another is still inside, is named by what it said.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Node
from mspc.ops.collective.base import Collective
from mspc.runtime.comm.interface import Communicator, Ranks

Check = Callable[[int], None]
"""Called with the way that this rank goes, a branch or a number of turns. Raises ExecutionError where ranks differ."""

_LONGEST = 256
"""Bytes of what a rank has done, for messages."""


def same_way(node: Node, comm: Communicator, said: Callable[[int], str]) -> Check | None:
    """What compares the way of this rank through the node with that of those that it meets inside; None where it meets
    nobody. said: tells a way, for messages, as what the rank has done: "has left While after 3 turns"."""
    groups = meetings_inside(node, comm.rank) if comm.size > 1 else []
    if not groups:
        return None
    beside = comm.beside()
    name = zlib.crc32(node.regions[-1].name.encode())

    def check(way: int) -> None:
        beside.say(f"{said(way)}\n{_note(groups)}")
        for ranks in groups:
            found = beside.all_gather(np.array([[name, way]], np.int64), ranks, 0)
            other = next((i for i in range(len(ranks)) if (found[i] != found[0]).any()), 0)
            if other:
                padded = np.frombuffer(said(way).encode()[:_LONGEST].ljust(_LONGEST), np.uint8)
                rows = beside.all_gather(padded[None], ranks, 0)
                one, two = (rows[i].tobytes().decode(errors="ignore").rstrip() for i in (0, other))
                raise ExecutionError(f"rank {ranks[0]} {one}, but rank {ranks[other]} {two}", notes=[_note(groups)])
        beside.say("")

    return check


def meetings_inside(node: Node, rank: int) -> list[Ranks]:
    """The groups of ranks that a rank meets inside of a node, ascending: in one order on all ranks."""
    found: set[Ranks] = set()
    for inner in collectives_of([node]):
        types = [value.type for value in inner.inputs]
        found |= {tuple(sorted(meeting.ranks)) for meeting in cast(Collective, inner.op).meetings(rank, types)}
    return sorted(ranks for ranks in found if len(ranks) > 1)


def collectives_of(nodes: Iterable[Node]) -> Iterator[Node]:
    """The collectives among nodes and all that they run."""
    own = list(nodes)
    regions = dict.fromkeys(region for node in own for region in node.regions)
    graphs = dict.fromkeys(graph for region in regions for graph in region.graphs())
    for node in (*own, *(node for graph in graphs for node in graph.nodes)):
        if isinstance(node.op, Collective):
            yield node


def _note(groups: list[Ranks]) -> str:
    ranks = ", ".join(map(str, sorted({rank for group in groups for rank in group})[:16]))
    return f"ranks {ranks} meet inside: there a condition or a number of turns must be the same on all of them"
