"""Contents of strategy and group files, taken from a graph with final layouts; and the strategies of a plan file, given
to a graph that was read. The pass `shard_by_plan` applies the rest of a plan."""

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
    """Return the sharding of a graph's parameters, by name."""
    chosen = [p for p in graph.parameters if p.trainable or not trainable_only]
    return {p.name: sharding_of(layout) for p, layout in _laid_out(chosen)}


def ranks_alike(graph: Graph, ranks: int, rank: int) -> list[int]:
    """Return the ranks that hold the same slices of all parameters, optimizer states included, as `rank`. If its
    checkpoint is lost, theirs replace it. ranks: the number of ranks of one stage; other stages hold other
    parameters."""
    layouts = {layout for _, layout in _laid_out(graph.parameters)}
    first = rank - rank % ranks
    found = range(first, first + ranks)
    return [other for other in found if all(each.slice_index(other) == each.slice_index(rank) for each in layouts)]


def groups_of(rank_graph: Graph, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the groups that a rank communicates in, by name."""
    ops = [node.op for node in rank_graph.nodes if isinstance(node.op, Collective)]
    return {op.group: op.ranks for op in ops if getattr(op, "group", "") and rank in op.ranks}


def _laid_out(parameters: Sequence[Parameter]) -> list[tuple[Parameter, Layout]]:
    return [(p, p.layout) for p in parameters if p.kind == "parameter" and isinstance(p.layout, Layout)]


def check_ranks(plan: PlanFile, ranks: int, file: str) -> None:
    """Raise MspcError if a plan is for another number of ranks."""
    if plan.ranks != ranks:
        raise MspcError(
            f"the plan {file} is for {plan.ranks} ranks, and the network is compiled for {ranks}", code="E0411"
        )


def give_strategies(names: StrategyNames, graph: Graph, plan: PlanFile, file: str) -> None:
    """Give the operators of a graph that was read the strategies of a plan, in place of those of `shard()`. Raise
    MspcError if the graph lacks an operator that the plan names."""
    if plan.strategies is None:
        return
    nodes = {place: node for node, place in names.places.items()}
    check_known(list(plan.strategies), list(nodes), file)
    graph.clear_strategies()
    for name, given in plan.strategies.items():
        nodes[name].in_strategy, nodes[name].out_strategy = given.operands, given.results
