"""Makes the contents of strategy and group files from a graph whose layouts are decided on, and gives a graph that was
read what a plan file says of `shard()`; the rest of a plan is for the pass `shard_by_plan`."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.layout import Layout
from mspc.ops.collective.base import Collective
from mspc.passes.sharding.shard_by_plan import check_known
from mspc.plans.files.plan_file import PlanFile
from mspc.plans.files.strategy_file import ParameterCut, sharding_of
from mspc.plans.operator_names import StrategyNames


def sharded_parameters(graph: Graph, trainable_only: bool) -> dict[str, ParameterCut]:
    """How the parameters of a graph lie on ranks, by name."""
    chosen = [p for p in graph.parameters if p.trainable or not trainable_only]
    return {p.name: sharding_of(layout) for p, layout in _laid_out(chosen)}


def ranks_alike(graph: Graph, ranks: int, rank: int) -> list[int]:
    """The ranks whose slices of all parameters, states of the optimizer among them, are those of one rank: where its
    checkpoint is lost, theirs take its place. ranks: of one stage; those of others hold other parameters."""
    layouts = {layout for _, layout in _laid_out(graph.parameters)}
    first = rank - rank % ranks
    found = range(first, first + ranks)
    return [other for other in found if all(each.slice_index(other) == each.slice_index(rank) for each in layouts)]


def groups_of(rank_graph: Graph, rank: int) -> dict[str, tuple[int, ...]]:
    """The groups that a rank communicates in, by name."""
    ops = [node.op for node in rank_graph.nodes if isinstance(node.op, Collective)]
    return {op.group: op.ranks for op in ops if getattr(op, "group", "") and rank in op.ranks}


def _laid_out(parameters: Sequence[Parameter]) -> list[tuple[Parameter, Layout]]:
    return [(p, p.layout) for p in parameters if p.kind == "parameter" and isinstance(p.layout, Layout)]


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
    for each in graph.graphs():
        for node in each.nodes:
            node.in_strategy = node.out_strategy = None
    for name, given in plan.strategies.items():
        nodes[name].in_strategy, nodes[name].out_strategy = given.operands, given.results
