"""Gives what a plan file says of `shard()` to a graph that was read; the rest is the pass `shard_by_plan`'s."""

from __future__ import annotations

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.passes.sharding.shard_by_plan import check_known
from mspc.plans.files.plan_file import PlanFile
from mspc.plans.operator_names import StrategyNames


def check_ranks(plan: PlanFile, ranks: int, file: str) -> None:
    """Raise MspcError where a plan is for another number of ranks."""
    if plan.ranks != ranks:
        raise MspcError(f"the plan {file} is for {plan.ranks} ranks, and the network is compiled for {ranks}")


def give_strategies(names: StrategyNames, graph: Graph, plan: PlanFile, file: str) -> None:
    """Give the operators of a graph that was read what a plan has of `shard()`, in place of what the script says.

    Raises:
        MspcError: an operator is not there.
    """
    if plan.strategies is None:
        return
    nodes = {place: node for node, place in names.places.items()}
    check_known(list(plan.strategies), list(nodes), file)
    for node in graph.nodes:
        node.in_strategy = node.out_strategy = None
    for name, given in plan.strategies.items():
        nodes[name].in_strategy, nodes[name].out_strategy = given.operands, given.results
