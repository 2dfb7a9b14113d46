"""Reads the plan file that a compile's settings name, and names the operators that it gives strategies to."""

from __future__ import annotations

from pathlib import Path

from mspc.compiler.config import STRATEGIES_FROM, Config
from mspc.ir.diagnostics import told_at
from mspc.ir.graph import Graph
from mspc.plans.files.plan_file import SUFFIX, PlanFile, names_layers_together, read_plan
from mspc.plans.operator_names import StrategyNames


def may_fold(config: Config) -> bool:
    """Whether equal layers may become one graph: on a GPU every layer has launches of its own weights, and a file of
    strategies, or a plan that does not name layers together, has strategies of every one."""
    if config.device == "GPU":
        return False
    return not config.strategies_from or names_layers_together(Path(config.strategies_from))


def named(graph: Graph, config: Config, plan: PlanFile | None, with_layers: bool) -> StrategyNames:
    """The names of the graph's operators, which a plan gives strategies to."""
    strategies = StrategyNames()
    strategies.name(graph, with_layers or plan is not None)
    if plan is not None:
        from mspc.passes.sharding.plan_header import note_plan
        from mspc.plans.contents import give_strategies

        plan = plan.for_operators(set(strategies.places.values()))
        give_strategies(strategies, graph, plan, config.strategies_from)
        note_plan(graph, plan, config.strategies_from, strategies.places)
    return strategies


def plan_of(config: Config) -> PlanFile | None:
    """The plan that operators are sharded by, None where there is none. Raises MspcError."""
    if not config.sharded or not config.strategies_from.endswith(SUFFIX):
        return None
    from mspc.plans.contents import check_ranks  # late, as all that only a plan needs

    with told_at(config.place_of(*STRATEGIES_FROM)):
        plan = read_plan(Path(config.strategies_from))
        check_ranks(plan, config.ranks, config.strategies_from)
    return plan
