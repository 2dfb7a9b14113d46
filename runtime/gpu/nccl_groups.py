"""The groups of ranks in which a graph communicates, each with a communicator of its own."""

from __future__ import annotations

from typing import Any

from mspc.ir.graph import Graph
from mspc.ops.collective.base import Collective
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.runtime.comm.interface import Ranks

Key = tuple[Ranks, int]
"""A group: its ranks in their order, and -1, or the tag of what two ranks send each other by hand."""


class GroupCommunicator:
    """A group's communicator; `of` gives a rank's number in it."""

    def __init__(self, ranks: Ranks, comm: Any) -> None:
        self.ranks = ranks
        self.comm = comm
        self.of = {rank: number for number, rank in enumerate(ranks)}


def groups_of(graph: Graph, rank: int) -> list[Key]:
    """The groups in which the graph of `rank` communicates, ascending; what stages send each other makes its own where
    it needs them (`stage_messages`)."""
    nodes = (node for each in graph.graphs() for node in each.nodes)
    collectives = (node for node in nodes if isinstance(node.op, Collective))
    found = {n.op.channel(rank) for n in collectives if not isinstance(n.op, SendToStage | ReceiveFromStage)}
    return sorted(key for key in found if len(set(key[0])) > 1)
