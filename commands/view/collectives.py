"""The page shows of a graph's collectives who takes part, what is sent, how long that takes and over what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.analysis.cost.machine import COLLECTIVES, Machine
from mspc.analysis.cost.nodes import seconds, sent_bytes
from mspc.commands.facts.graph import GraphFacts, listed_ranks
from mspc.commands.facts.model import CollectiveFact
from mspc.commands.view.groups import Strides, members_of, strides_of_axes, strides_of_members
from mspc.commands.view.schedule import rounded
from mspc.commands.view.stages import message_facts
from mspc.ir.graph import Graph, Node
from mspc.ops.collective.base import Collective


def collective_facts(graph: Graph, machine: Machine, rank: int = -1, runs: int = 1) -> dict[int, dict[str, Any]]:
    """By the number of a collective's node: `group`, the strides of its axes as `groups.members_of` takes them, or
    `members` where they lie by no rule; on a rank's graph `bytes` that the rank sends, `seconds` and the `link`, of
    MindSpore's dumps the `bytes`; of a message between stages the `message`, as `message_facts` has it. rank: whose
    graph it is, where the graph does not say. runs: how often a step runs the graph; bytes and seconds are those of the
    step."""
    rank = rank if rank >= 0 else graph.attrs.get("rank", 0)
    told = GraphFacts(graph, foreign=True, of_one_rank=False, machine=machine)
    found: dict[int, dict[str, Any]] = {}
    for index, node in enumerate(graph.nodes):
        if isinstance(node.op, Collective):
            found[index] = _facts(node, node.op, rank, machine, runs)
        elif node.op.name in COLLECTIVES:
            found[index] = _foreign_facts(node, told.collective(node), told.ranks_of(node))
    return found


def _foreign_facts(node: Node, fact: CollectiveFact | None, ranks: int) -> dict[str, Any]:
    """Of a collective of MindSpore's: what its text lets one know. Not every operator's bytes are known here."""
    listed = listed_ranks(node.op.attributes().get("rank_list")) if fact is None else fact.row.ranks
    return _group(listed, 0) | ({} if fact is None else {"size": ranks, "bytes": fact.row.bytes})


def _facts(node: Node, op: Collective, rank: int, machine: Machine, runs: int) -> dict[str, Any]:
    if op.over_mesh:
        strides = strides_of_axes(getattr(op, "mesh", ()), getattr(op, "axes", ()))
        return {"group": strides, "size": len(members_of(strides, 0))}
    facts = _group(op.members, rank)
    return facts | {
        "bytes": rounded(sent_bytes(node) * runs), "seconds": rounded(seconds(node, machine) * runs),
        "link": _link(op.members or (rank, *op.partners(rank)), machine), **message_facts(node, rank),
    }  # fmt: skip


def _group(members: Sequence[int], rank: int) -> dict[str, Any]:
    strides: Strides | None = strides_of_members(tuple(sorted(members))) if members else ()
    by_rule = strides is not None and rank in members and members_of(strides, rank) == tuple(sorted(members))
    return {"size": len(members), **({"group": strides} if by_rule else {"members": list(members)})}


def _link(members: Sequence[int], machine: Machine) -> str:
    """What a collective of these ranks goes over, in words."""
    if not members or not machine.ranks_per_host or machine.network is None:
        return "between ranks of one host"
    hosts = {rank // machine.ranks_per_host for rank in members}
    return "between ranks of one host" if len(hosts) < 2 else f"between {len(hosts)} hosts"
