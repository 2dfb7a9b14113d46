"""Compares plans of one launch: what the search finds, and the usual ways to shard a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mspc.analysis.cost.missing_rates import missing_rates
from mspc.compiler.driver import compile_call
from mspc.engine.capture import CapturedCall
from mspc.engine.strategy_files import sharded_by_file
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.output.programs import config_of
from mspc.plans.files.plan_file import PlanFile
from mspc.search.plans.alternatives import Alternative, PlannedNetwork, PlanRequest, all_ways
from mspc.search.plans.chosen_pairs import FoldedTries, folded_network, folded_tries
from mspc.search.plans.figures import Outcome, figures, remarked
from mspc.search.plans.fitted import FittedWay
from mspc.search.plans.forked_calls import ForkedCalls, can_fork
from mspc.search.plans.related_plans import SearchedNetwork
from mspc.search.plans.row import DATA_PARALLEL, SEARCH, PlanResult, Plans, UsualPlans, take_faster, tell_same

LARGE_GRAPH = 1000
"""Operators of a network above which ways are compiled beside one another."""


@dataclass(frozen=True)
class _Refused:
    """A search without a plan. configured: whether the script gives strategies."""

    error: MspcError
    configured: bool


def plans_for(
    captured: CapturedCall, asked: PlanRequest, on_way: Callable[[str], None] | None = None,
    ways: Sequence[Alternative] | None = None,
    usual: UsualPlans | None = None,
) -> Plans:  # fmt: skip
    """Compile a launch in every way.

    Args:
        captured: what is sharded. on_way: told the name of every way before it is tried. ways: all where it is None;
        the search is the first. usual: plans of those that are left out, made before.

    Raises:
        MspcError: the search's plan does not compile, or no plan fits the memory.
    """
    plans: list[PlanResult] = []
    refused: list[str] = []
    files: dict[str, PlanFile] = {}
    paired: list[PlanResult] = []
    tried = list(all_ways(captured, asked) if ways is None else ways)
    configured, refusal = False, None
    for way, outcome in _outcomes(captured, asked, tried, on_way or (lambda _: None)):
        if isinstance(outcome, _Refused):
            configured, refusal = outcome.configured, outcome.error
            continue
        if isinstance(outcome, str):
            refused.append(f"{way.name.partition(',')[0]}: {outcome}")
            continue
        (paired if way.tensor else plans).append(outcome.plan)
        files[way.name] = outcome.file
        if way.name == SEARCH:
            configured = outcome.configured
    may = {way.name for way in tried if asked.free or not (configured and way.free)} - {SEARCH}
    usual = usual or UsualPlans([plan for plan in (*plans, *paired) if plan.name in may], dict(files))
    plans += sorted(paired, key=lambda plan: plan.step)[:1]
    tell_same(plans, files)
    take_faster(plans, files, usual, asked.mesh)
    if refusal is not None and SEARCH not in files:
        raise refusal
    return Plans(sorted(plans, key=lambda plan: (plan.step, plan.nbytes)), list(dict.fromkeys(refused)), files, usual)


def _outcomes(
    captured: CapturedCall, asked: PlanRequest, ways: Sequence[Alternative], on_way: Callable[[str], None]
) -> Iterator[tuple[Alternative, Outcome | str | _Refused]]:
    """What every way comes to, or why it does not, in order. The search runs here, and meanwhile the others of a large
    network in forks. Where it finds nothing within a limit of memory, others may. Raises its other MspcErrors."""
    on_way(ways[0].name)
    network = PlannedNetwork.read(captured, asked.config(captured), asked.free, bool(asked.memory))
    nodes = network.call.traced.graph.nodes
    is_large = len(nodes) > LARGE_GRAPH
    tasks = _tasks(network, asked, ways[1:], is_large)
    calls = [partial(_outcomes_of, network, asked, task) for task in tasks]
    with ForkedCalls(calls if is_large and can_fork() else ()) as forked:
        try:
            yield ways[0], SearchedNetwork(network, asked, ways[0]).quickest()
        except MspcError as error:
            if not asked.memory:
                raise
            yield ways[0], _Refused(error, any(node.in_strategy is not None for node in nodes))
        forked.one_more()
        found: dict[str, Outcome | str] = {}
        for i, (task, call) in enumerate(zip(tasks, calls, strict=True)):
            on_way(task.ways[0].name)
            found |= (forked.result(i) if forked.count else None) or call()
    yield from ((way, found[way.name]) for way in ways[1:] if way.name in found)


@dataclass(frozen=True)
class _Task:
    """Ways that are tried in one process. folded: the network with equal layers as one graph, by which ways are
    left out; None where none are."""

    ways: Sequence[Alternative]
    folded: PlannedNetwork | None = None


def _tasks(
    network: PlannedNetwork, asked: PlanRequest, ways: Sequence[Alternative], is_large: bool
) -> list[_Task]:
    folded = folded_network(network.captured, asked, ways) if is_large else None
    if folded is None:
        return [_Task((way,)) for way in ways]
    tried = [way for way in ways if way.tensor or way.name == DATA_PARALLEL]
    return [*(_Task((way,)) for way in ways if way not in tried), _Task(tried, folded)]


def _outcomes_of(network: PlannedNetwork, asked: PlanRequest, task: _Task) -> dict[str, Outcome | str]:
    """What the ways of a task come to by their names; nothing of those that are left out without a word."""
    tries = FoldedTries() if task.folded is None else folded_tries(task.folded, asked, task.ways)
    found: dict[str, Outcome | str] = {}
    order = {name: place for place, name in enumerate(tries.pairs)}
    for way in sorted(task.ways, key=lambda way: order.get(way.name, -1)):
        if way.name in tries.over:
            found[way.name] = tries.over[way.name]
        elif way.name in order and any(_fits_as_it_is(found.get(name)) for name in order):
            continue  # that one is quicker
        elif way.name in tries.slow:
            found |= {way.name: tries.slow[way.name]} if tries.slow[way.name] else {}
        elif way.name == DATA_PARALLEL and tries.far is not None:
            found[way.name] = tries.far
        else:
            found[way.name] = _outcome(network, asked, way)
    return found


def _fits_as_it_is(outcome: Outcome | str | None) -> bool:
    return isinstance(outcome, Outcome) and not outcome.plan.remarks.made_to_fit


def _outcome(network: PlannedNetwork, asked: PlanRequest, way: Alternative) -> Outcome | str:
    """What a usual way comes to, or why it does not."""
    try:
        compiled, plan = FittedWay(network, asked, way).quickest()
    except MspcError as error:
        return error.message
    plan = replace(plan, remarks=remarked(plan.remarks, compiled, asked, way))
    return Outcome.of(plan, compiled, network.captured, asked)


def plan_of_file(captured: CapturedCall, asked: PlanRequest, file: Path) -> PlanResult:
    """What a launch costs that is sharded as a plan says. Raises MspcError."""
    captured = replace(captured, context=sharded_by_file(captured.context, file))
    own = config_of(captured, asked.ranks)
    own = replace(own, device=asked.device or own.device)
    compiled = compile_call(captured.target, captured.args, own, None, captured.global_types)
    found = figures(file.stem, compiled, captured, asked)
    if own.pipeline_stages == 1:
        return found
    from mspc.search.stages.rows import graphs_of_stages, step_seconds  # late: few networks have stages

    missing = missing_rates(graphs_of_stages(compiled), asked.machine)
    remarks = replace(found.remarks, missing_rates=missing)
    return replace(found, step=step_seconds(compiled, asked.machine), gap=None, remarks=remarks)


