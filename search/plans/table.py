"""Plans of one launch side by side: what the search finds, and the usual ways to cut a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mspc.analysis.cost.least import least_seconds
from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import sent_bytes
from mspc.analysis.cost.timeline import Timeline
from mspc.api.settings import SHARDED
from mspc.compiler.call import describe_call
from mspc.compiler.config import STRATEGIES_FROM, Config
from mspc.compiler.driver import Compiled, OnStage, TracedCall, compile_launch, compile_traced, trace_call
from mspc.compiler.plan_file import SUFFIX, PlanFile, read_plan
from mspc.compiler.sent import sent_by_ranks
from mspc.engine.capture import Launch
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.output.programs import config_of
from mspc.passes.search.recompute_cells import ASKED as RECOMPUTE_CELLS
from mspc.passes.sharding.givers import GIVEN
from mspc.passes.sharding.parallel_optimizer import why_uncut
from mspc.passes.sharding.propagate_sharding import MILLION
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.workspaces import workspace_bytes
from mspc.search.plans.fitting import variants_of
from mspc.search.plans.forked import ForkedCalls, can_fork
from mspc.search.plans.limited import LimitedPlans, Taken
from mspc.search.plans.megatron import cut_in_pairs, tensor_sizes
from mspc.search.plans.reckoned import terms_for
from mspc.search.plans.relatives import leave_whole, relatives
from mspc.search.plans.row import DATA_PARALLEL, SEARCH, Plan, Plans, Remarks, take_faster, tell_same

MEGATRON = "Megatron-style"
LARGE_GRAPH = 1000
"""Operators of a network above which ways are compiled beside one another."""
RELATED = 1000
"""Operators of a network up to which relatives of what is found are compiled, too."""
AUTOMATIC, SEMI = {"mode": "auto_parallel"}, {"mode": "semi_auto_parallel"}


@dataclass(frozen=True)
class Way:
    """One way to cut a network. settings: what is otherwise in `Config`. free: without the strategies of the script.
    tensor: ranks that share a product in pairs of products, 0 where they are not cut so. whole: nothing is cut. again:
    cells are computed again for gradients."""

    name: str
    settings: dict[str, Any]
    free: bool = False
    tensor: int = 0
    whole: bool = False
    again: bool = False


WAYS = (
    Way(SEARCH, {**AUTOMATIC, "search_mode": "dynamic_programming"}),
    Way("sharding propagation", {**AUTOMATIC, "search_mode": ""}),
    Way(DATA_PARALLEL, {**SEMI, "parallel_optimizer": False}, free=True),
    Way("optimizer parallel", {**SEMI, "parallel_optimizer": True}, free=True),
)
CONFIGURED = Way("as configured", {})
WHOLE = Way("whole", SEMI, free=True, whole=True)


@dataclass(frozen=True)
class Outcome:
    """What a way comes to. file: its plan's. configured: whether the script has cut operators itself."""

    plan: Plan
    file: PlanFile
    configured: bool


@dataclass(frozen=True)
class _Refused:
    """A search without a plan. configured: whether the script gives strategies."""

    error: MspcError
    configured: bool


@dataclass(frozen=True)
class PlanRequest:
    """What plans are wanted for. ranks: how many there are. machine: times are estimated for it. device: what programs
    are made for, "" for the script's. free: leave out the strategies of the script. memory: bytes that a rank has, 0
    for any. mesh: that the search cuts for, as "8x4"; "" for any. seconds: for one search, 0 for any number."""

    ranks: int
    machine: Machine
    device: str = ""
    free: bool = False
    memory: int = 0
    mesh: str = ""
    seconds: float = 0

    def config(self, launch: Launch) -> Config:
        """How a launch is compiled in every way."""
        own = config_of(launch, self.ranks)
        base = own if own.mode != "stand_alone" else replace(own, dataset_strategy="full_batch")
        terms = replace(terms_for(self.machine), mesh=self.mesh, milliseconds=math.ceil(self.seconds * 1000))
        return replace(base, search_terms=terms, device=self.device or own.device)


def plans_for(
    launch: Launch, asked: PlanRequest, on_way: Callable[[str], None] | None = None, ways: Sequence[Way] | None = None
) -> Plans:
    """Compile a launch in every way.

    Args:
        launch: what is cut. on_way: told the name of every way before it is tried. ways: all that there are without it;
        the search is the first.

    Raises:
        MspcError: the search's plan does not compile, or no plan fits the memory.
    """
    config = asked.config(launch)
    plans: list[Plan] = []
    refused: list[str] = []
    files: dict[str, PlanFile] = {}
    paired: list[Plan] = []
    tried = list(_ways(launch, asked) if ways is None else ways)
    configured, refusal = False, None
    for way, outcome in _outcomes(launch, config, asked, tried, on_way or (lambda _: None)):
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
    plans += sorted(paired, key=lambda plan: plan.step)[:1]
    tell_same(plans, files)
    if not asked.mesh:
        take_faster(plans, files, {way.name for way in tried if asked.free or not (configured and way.free)})
    if refusal is not None and SEARCH not in files:
        raise refusal
    return Plans(sorted(plans, key=lambda plan: (plan.step, plan.nbytes)), list(dict.fromkeys(refused)), files)


def _outcomes(
    launch: Launch, config: Config, asked: PlanRequest, ways: Sequence[Way], on_way: Callable[[str], None]
) -> Iterator[tuple[Way, Outcome | str | _Refused]]:
    """What every way comes to, or why it does not, in order. The search runs here, and meanwhile the others of a large
    network in forks. Where it finds nothing within a limit of memory, others may. Raises its other MspcErrors."""
    on_way(ways[0].name)
    call = _read(launch, replace(config, **ways[0].settings))
    others = ways[1:] if len(call.traced.graph.nodes) > LARGE_GRAPH and can_fork() else ()
    with ForkedCalls([partial(_outcome, launch, config, asked, way, call) for way in others]) as forked:
        configured = any(node.in_strategy is not None for node in call.traced.graph.nodes)
        try:
            yield ways[0], _compared(launch, config, asked, ways[0], call)
        except MspcError as error:
            if not asked.memory:
                raise
            yield ways[0], _Refused(error, configured)
        forked.one_more()
        for i, way in enumerate(ways[1:]):
            on_way(way.name)
            yield way, (forked.result(i) if others else None) or _outcome(launch, config, asked, way)


def _outcome(
    launch: Launch, config: Config, asked: PlanRequest, way: Way, call: TracedCall | None = None
) -> Outcome | str:
    try:
        return _compared(launch, config, asked, way, call)
    except MspcError as error:
        return error.message


def _compared(
    launch: Launch, config: Config, asked: PlanRequest, way: Way, call: TracedCall | None
) -> Outcome:
    """What a way comes to. call: what was read, if it was. Raises MspcError."""
    related = way.name == SEARCH and not asked.mesh and not asked.seconds
    try:
        found, compiled = _alone(launch, config, asked, way, call)
    except MspcError:
        nearby = _quickest(None, None, launch, config, asked, way) if related and asked.memory else None
        if nearby is None:
            raise
        return nearby
    return (_quickest(found, compiled, launch, config, asked, way) if related else None) or found


def _alone(
    launch: Launch, config: Config, asked: PlanRequest, way: Way, call: TracedCall | None
) -> tuple[Outcome, Compiled]:
    """What a way comes to without relatives, and its program. Raises MspcError."""
    if way.name == SEARCH and asked.memory:
        compiled = _within(launch, config, way, asked, asked.memory, call)
    else:
        compiled = compiled_way(launch, config, way, asked.free, call)
    compiled, plan = _made_to_fit(compiled, launch, config, asked, way)
    plan = replace(plan, remarks=_remarks(plan.remarks, compiled, asked, way))
    return Outcome(plan, _file(compiled, launch, asked), _is_configured(compiled)), compiled


def _remarks(remarks: Remarks, compiled: Compiled, asked: PlanRequest, way: Way) -> Remarks:
    kept = _is_configured(compiled) and not (asked.free or way.free)
    reason = why_uncut(compiled.graph) if compiled.config.parallel_optimizer else ""
    return replace(remarks, keeps_strategies=kept, reason=reason)


def _made_to_fit(
    compiled: Compiled, launch: Launch, config: Config, asked: PlanRequest, way: Way
) -> tuple[Compiled, Plan]:
    """A way's program and its plan; of a usual one that is too large the quicker variant. Raises MspcError."""
    if way.name in (SEARCH, CONFIGURED.name) or not asked.memory:
        return compiled, _plan(way.name, compiled, launch, asked, asked.memory)
    plan = _plan(way.name, compiled, launch, asked)
    if plan.memory <= asked.memory:
        return compiled, plan
    tried: list[str] = []
    least = plan.memory
    for variants in variants_of(compiled.graph):
        fitting: list[tuple[Compiled, Plan]] = []
        for variant in variants:
            other_way = replace(way, settings={**way.settings, **variant.settings}, again=variant.again)
            try:
                other = compiled_way(launch, config, other_way, asked.free)
            except MspcError:
                continue
            found = _plan(way.name, other, launch, asked)
            remarks = Remarks(made_to_fit=variant.words, otherwise=plan.memory)
            fitting += [(other, replace(found, remarks=remarks))] * (found.memory <= asked.memory)
            tried.append(variant.words)
            least = min(least, found.memory)
        if fitting:
            return min(fitting, key=lambda each: each[1].step)
    also = f"; {', '.join(tried)} were tried, and {least} are the least" if tried else ""
    raise MspcError(f"it needs {plan.memory} bytes of memory on a rank, and there are {asked.memory}{also}")


def _quickest(
    own: Outcome | None, compiled: Compiled | None, launch: Launch, config: Config, asked: PlanRequest, way: Way
) -> Outcome | None:
    """The quickest by the estimated step of what a search has found, which is none where all that it found is over the
    limit, and of its relatives; None where no relative is better. Raises MspcError of a search without a limit."""
    plain = compiled if compiled is not None and not asked.memory else compiled_way(launch, config, way, asked.free)
    if len(plain.traced.graph.nodes) > RELATED:
        return None
    best: Outcome | None = own
    graph = plain.rank_graph(0)
    peak = plan_memory(graph).peak + _workspace(graph, launch, config)

    def searched(config: Config) -> Compiled:
        return compiled_way(launch, config, way, asked.free)

    def within(limit: int) -> Compiled:
        return searched(replace(config, search_terms=replace(config.search_terms, memory=limit)))

    configured = _is_configured(plain)
    remarks = own.plan.remarks if own is not None else _remarks(Remarks(), plain, asked, way)
    whole = partial(compiled_way, launch, config, WHOLE, True) if asked.free or not configured else None
    for name, make in relatives(config, plain, peak, searched, within, whole):
        try:
            other = make()
            plan = _plan(SEARCH, other, launch, asked, asked.memory)
        except MspcError:
            continue
        if best is None or plan.step < best.plan.step:
            plan = replace(plan, search_gap=None, taken_from=name, remarks=remarks)
            best = Outcome(plan, _file(other, launch, asked), configured)
    return best


def _file(compiled: Compiled, launch: Launch, asked: PlanRequest) -> PlanFile:
    """What the file of a compiled plan says: its device too, where that is not the script's own."""
    ranks = compiled.config.ranks
    device = asked.device if asked.device != config_of(launch, ranks).device else ""
    return replace(compiled.strategies.plan(ranks), device=device)


def _is_configured(compiled: Compiled) -> bool:
    """Whether the script has cut operators itself."""
    return any(node.attrs.get("strategy_from") in GIVEN for node in compiled.graph.nodes)


def _ways(launch: Launch, asked: PlanRequest) -> Iterator[Way]:
    yield from WAYS
    for size in tensor_sizes(asked.ranks, asked.machine.ranks_per_host):
        settings = {**AUTOMATIC, "search_mode": ""}
        yield Way(f"{MEGATRON}, {asked.ranks // size} x {size}", settings, free=True, tensor=size)
    if config_of(launch, asked.ranks).sharded and not asked.free:
        yield CONFIGURED


def plan_of_file(launch: Launch, asked: PlanRequest, file: Path) -> Plan:
    """What a launch comes to that is cut as a plan says. Raises MspcError."""
    launch = cut_by_file(launch, file)
    own = config_of(launch, asked.ranks)
    config = replace(own, device=asked.device or own.device)
    return _plan(file.stem, compile_launch(launch.target, launch.args, config, whole=launch.whole), launch, asked)


def cut_by_file(launch: Launch, file: Path) -> Launch:
    """The launch with operators cut as a plan or a strategy file says; in automatic mode where its script cuts none."""
    places = tuple(found for found in launch.context.set_at if found[0] not in STRATEGIES_FROM)
    context = replace(launch.context, operator_load_file=str(file), set_at=places)
    if context.parallel_mode == "stand_alone":
        context = replace(context, parallel_mode="auto_parallel", dataset_strategy="full_batch")
    elif context.parallel_mode not in SHARDED:
        context = replace(context, parallel_mode="auto_parallel")
    device = read_plan(file).device if file.suffix == SUFFIX else ""
    return replace(launch, context=replace(context, device_target=device or context.device_target))


def _read(launch: Launch, config: Config) -> TracedCall:
    """A launch as a graph, the same for all ways. Raises MspcError."""
    return trace_call(launch.target, describe_call(launch.args, []), config, launch.whole)


def compiled_way(
    launch: Launch, config: Config, way: Way, free: bool = False, call: TracedCall | None = None,
    on_stage: OnStage | None = None,
) -> Compiled:  # fmt: skip
    """A launch, cut in one way. free: without the strategies of the script, whatever the way. call: the launch as it
    was read, which goes into the program; it is read here without it. Raises MspcError."""
    free = free or way.free
    config = replace(config, **way.settings, **({"strategies_from": ""} if free else {}))
    call = _read(launch, config) if call is None else replace(call, config=config)
    if way.again:
        call.traced.graph.attrs[RECOMPUTE_CELLS] = True
    if free:
        for node in call.traced.graph.nodes:
            node.in_strategy = node.out_strategy = None
    if way.whole:
        leave_whole(call.traced.graph)
    if way.tensor:
        cut_in_pairs(call.traced.graph, config.ranks, way.tensor)
    return compile_traced(call, on_stage)


def _within(
    launch: Launch, config: Config, way: Way, asked: PlanRequest, memory: int, call: TracedCall | None
) -> Compiled:
    """The search's plan within a limit of memory. Raises MspcError where none was found."""
    unread = [call] if call is not None else []

    def compiled(wanted: Config, on_stage: OnStage | None) -> Compiled:
        return compiled_way(launch, wanted, way, asked.free, unread.pop() if unread else None, on_stage)

    def taken(program: Compiled, rank: int) -> Taken:
        graph = program.rank_graph(rank)
        step = Timeline(graph, asked.machine).total
        return Taken(plan_memory(graph), _workspace(graph, launch, config), step, len(graph.nodes))

    return LimitedPlans(config, memory, compiled, taken, lambda program: sent_by_ranks(program).rank).quickest()


def _workspace(graph: Graph, launch: Launch, config: Config) -> int:
    """Bytes of a GPU that kernels take beside the memory plan; 0 on the CPU."""
    return workspace_bytes(graph, launch.context.matmul_allow_tf32) if config.device == "GPU" else 0


def _plan(name: str, compiled: Compiled, launch: Launch, asked: PlanRequest, limit: int = 0) -> Plan:
    """What a compiled launch comes to. Raises MspcError where it takes more memory than a limit that is not 0."""
    sent = sent_by_ranks(compiled)
    graph = compiled.rank_graph(sent.rank)
    memory = plan_memory(graph).peak + _workspace(graph, launch, compiled.config)
    if 0 < limit < memory:
        raise MspcError(f"it needs {memory} bytes of memory on a rank, and there are {limit}")
    time, attrs = Timeline(graph, asked.machine), compiled.graph.attrs
    least = min(time.total, least_seconds(compiled.graph.nodes, asked.ranks, asked.machine))
    return Plan(
        name=name,
        ranks=asked.ranks,
        mesh=asked.mesh,
        step=time.total,
        compute=time.compute,
        exposed=time.total - time.compute,
        nbytes=sent.most,
        mean_nbytes=sent.mean,
        rank=sent.rank,
        least=least,
        gap=1 - least / time.total if least else None,
        search_gap=_search_gap(attrs),
        memory=memory,
        collectives=sum(sent_bytes(node) > 0 for node in graph.nodes),
        recompute=tuple(compiled.strategies.recomputed),
        cut_further=len(compiled.strategies.parameters),
        gathered_again=len(compiled.strategies.gathered),
        foreseen=attrs.get("search_held"),
    )


def _search_gap(attrs: Mapping[str, Any]) -> float | None:
    """The share of what a plan costs the search that a better one could save at most; None where nothing is proved."""
    return attrs["search_open"] / MILLION if "search_open" in attrs else None
