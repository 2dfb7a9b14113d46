"""Compiler driver: turns a launch (a target and its inputs) into one graph for all ranks and one per rank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from mspc.analysis.aliasing import Updates
from mspc.compiler.call import Call, describe_call, feed_call, graph_arguments, placements_of, takes_data
from mspc.compiler.config import STRATEGIES_FROM, Config, Fed
from mspc.compiler.frontend.trace import Traced, trace
from mspc.compiler.pipeline import (
    OPTIONAL,
    VIEWS,
    RankDumps,
    file_of,
    idle_passes,
    numbered,
    rank_passes,
    shared_passes,
)
from mspc.compiler.rank_graphs import RankGraphs, copied
from mspc.ir.diagnostics import MspcError, listed, told_at
from mspc.ir.graph import STAGES, Graph, Node, Parameter, Value, asks_for_host
from mspc.ir.late_dataclass import dataclass
from mspc.ir.provenance import FRONTEND, record_provenance
from mspc.ir.text.families import gradient_names
from mspc.ir.text.printer import print_graph
from mspc.mindspore_api.common.gradient import NamedCall
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.settings import LEVELS
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import is_stack_of_parameters
from mspc.passes.base import OnPass, PassManager, find_pass
from mspc.passes.per_rank.slice_to_rank import check_rank
from mspc.passes.sharding.check_strategies import strategy_mistakes
from mspc.plans.files.plan_file import SUFFIX, PlanFile, read_plan
from mspc.plans.operator_names import StrategyNames, all_is_given, shard_as_in_file

ID_LENGTH = 16


@dataclass(frozen=True)
class DumpPoint:
    """One point of a compile at which the graph may be dumped.

    name: the pass. file: the name of the dump without counter, such as `08_slice_to_rank`. graph: the result of the
    pass. rank: None for the graph of all ranks. changed: whether the pass changed anything. previous: the pass before.
    text: returns the text of the graph, for a rank without making its nodes.
    """

    name: str
    file: str
    graph: Graph
    rank: int | None
    changed: bool
    previous: str
    text: Callable[[], str]


OnStage = Callable[[DumpPoint], None]
Decide = Callable[[Graph], None]
"""Callback that changes the graph of all ranks once all given strategies are on the operators and before any others are
chosen."""


@dataclass
class Compiled:
    """A compiled program.

    graph: the graph of all ranks with collectives over mesh axes, before slicing. traced: the result of the front end.
    fed: how the launch's arguments arrive. compile_id: equal exactly for equal programs. strategies: strategies of the
    operators, under their names in strategy files.
    """

    config: Config
    traced: Traced
    fed: list[Fed]
    graph: Graph
    compile_id: str
    stages: int
    rank_graphs: RankGraphs
    strategies: StrategyNames = field(default_factory=StrategyNames)
    ranks_done: dict[int, Graph] = field(default_factory=dict[int, Graph])

    def drop_script(self) -> None:
        """Release the script's cells and Parameters."""
        self.traced = self.traced.without_script()

    @property
    def inputs(self) -> list[Any]:
        """The graph's fed parameters, in the order of the launch's tensors."""
        return [p for p in self.graph.parameters if p.kind == "input"]

    @cached_property
    def placements(self) -> list[Any]:
        """Placements of the tensors that a launch returns: see `Tensor.placement`."""
        return placements_of(self.config, self.results)

    @property
    def results(self) -> list[Value]:
        """Results of a launch of all ranks, with their layouts. A single rank has the results of its own graph."""
        alone = self.ranks_done.get(0) if self.config.ranks == 1 else None
        return (alone or self.graph).results

    def rank_graph(
        self, rank: int, on_stage: OnStage | None = None, wanted: Collection[str] | None = None, alone: bool = False
    ) -> Graph:
        """Return the executable graph of one rank.

        `on_stage` is called for the stages in `wanted`, by default for all. `alone`: no other rank's graph will be
        read. Raise MspcError if there is no such rank.
        """
        if on_stage is None and rank in self.ranks_done:
            return self.ranks_done[rank]
        if on_stage is None:
            check_rank(self.graph, rank)
            graph = self.ranks_done[rank] = self.rank_graphs.executable(rank)
            return graph
        names = self.rank_graphs.passes
        if wanted is None:
            wanted = names
        dumps = RankDumps(names, self.stages, shared_passes(self.config.mode, self.config.device)[-1])

        def report(name: str, graph: Graph, changed: bool, text: Callable[[], str] | None = None) -> None:
            dump = dumps.file_and_before(name, changed)
            if name in wanted and dump is not None:
                file, before = dump
                on_stage(DumpPoint(name, file, graph, rank, changed, before, text or partial(print_graph, graph)))

        if alone:
            return self.rank_graphs.alone(rank, report)
        found = self.rank_graphs.of(rank, wanted)
        for name in names:
            if name in wanted:
                report(name, found.graph(name), found.of_kind[name].changed, partial(found.text, name))
        graph = self.ranks_done[rank] = found.graph(names[-1])
        return graph


def compile_call(
    target: Any, args: Sequence[Any], config: Config, on_stage: OnStage | None = None, global_types: bool = False,
) -> Compiled:  # fmt: skip
    """Compile the call `target(*args)` for all ranks of `config`.

    target: a Cell or a function. args: its arguments as one rank passes them, or TensorTypes in their place. on_stage:
    called after every pass that all ranks share. The stages of a rank come with `Compiled.rank_graph`. global_types:
    the argument types are global, whatever the dataset strategy is. Raise MspcError with every error of the
    program, independent ones together.
    """
    return compile_traced(trace_call(target, describe_call(args, []), config, global_types), on_stage)


@dataclass(frozen=True)
class TracedCall:
    """A call that is traced but not compiled yet. fed: how its tensors arrive."""

    config: Config
    traced: Traced
    fed: list[Fed]

    @property
    def text(self) -> str:
        """Text of the graph that the front end made. Calls with equal text are one program."""
        return print_graph(self.traced.graph)

    def again(self, config: Config) -> TracedCall:
        """Return the same call with its own copy of the graph, to be compiled differently: a compile changes its graph.
        config: one under which the call would be traced the same."""
        traced = replace(self.traced, graph=copied(self.traced.graph), warnings=[*self.traced.warnings])
        return TracedCall(config, traced, self.fed)


def trace_call(
    target: Any, call: Call, config: Config, global_types: bool = False, unrolled: bool = False,
    reuses_calls: bool = True,
) -> TracedCall:  # fmt: skip
    """Trace `target(*call)`. Raise MspcError as `compile_call` does.

    unrolled: equal layers do not become one graph. reuses_calls: see `trace`. A target without data, such as an
    optimizer, returns True for every update instead of copies of the changed parameters.
    """
    network = target.fn if isinstance(target, NamedCall) else target
    if isinstance(network, Cell):
        network.distinguish_parameters()
    fed = feed_call(config, target, call, global_types)
    traced = trace(
        target,
        graph_arguments(call, fed),
        config.sharded or config.keeps_strategies > 0,
        config.script_folder,
        folds=not unrolled and config.folds_layers,
        stages=config.pipeline_stages,
        stage_plan=config.stage_plan,
        other_mistakes=(lambda graph: strategy_mistakes(graph, config.ranks)) if config.sharded else None,
        reuses_calls=reuses_calls,
    )
    traced.graph.attrs |= {name: value for name, value in config.attributes().items() if name.startswith("fp8_")}
    if config.fp8_format and config.fp8_recipe == "delayed":
        from mspc.compiler.amax_history import add_history  # imported late: few networks multiply in Float8

        add_history(network, traced)
    if not takes_data(target):
        traced.drop_results(Updates(traced.graph).changes)
    return TracedCall(config, traced, fed)


def compile_traced(
    call: TracedCall, on_stage: OnStage | None = None, on_pass: OnPass | None = None, decide: Decide | None = None,
    plans: bool = False, plan: PlanFile | None = None,
) -> Compiled:  # fmt: skip
    """Compile a traced call: run the shared passes, then compute the program's identity. Every program is compiled
    here.

    Args:
        on_stage: called for every stage that may be dumped. It must not change the graph.
        on_pass: called for every pass that runs, those of the rank graphs included.
        decide: changes the graph of all ranks once all given strategies are on the operators and before any others are
            chosen. A search compiles its results this way.
        plans: also record the names and layouts of operators in equal layers that are one graph, for a plan. The
            program is neither run nor written, and has no identity.
        plan: used instead of the plan that the settings name.
    """
    config, traced, fed = call.config, call.traced, call.fed
    plan = plan or _plan_of(config)
    graph = _prepared(call, plan)
    record_provenance(graph, FRONTEND)
    names = shared_passes(config.mode, config.device)
    from mspc.passes.fusion.fuse_large_attention import has_many_scores  # imported late: it costs a start too much

    if "fuse_attention" in names or has_many_scores(graph):
        from mspc.passes.fusion.attention_masks import note_causal_masks, note_rows

        arrays = {name: a for name, a in traced.constants.items() if not isinstance(a, InitialValue)}
        note_causal_masks(graph, arrays)
        note_rows(graph, arrays)
    strategies = _named(graph, config, plan, plans)
    strategies.keep_strategies(graph)

    def look(stage: DumpPoint) -> None:
        strategies.look(stage.name, stage.graph)
        if on_stage is not None:
            on_stage(stage)
        if decide is not None and all_is_given(stage.name, stage.graph):
            decide(stage.graph)

    rank_names = partial(rank_passes, config.device, config.pipeline_stages)
    stages = 1 + max(number for number, _ in numbered(names))
    graph = _of_all_ranks(config, graph, names, look if config.sharded else on_stage, on_pass, plans)
    if config.mode in ("stand_alone", "hybrid_parallel") and config.ranks > 1:
        traced.warnings += filter(None, [warning_of_own_gradients(graph, config.mode)])
    make: Callable[..., RankGraphs] = RankGraphs
    if config.pipeline_stages > 1:
        from mspc.compiler.rank_graphs import StageGraphs as make  # imported late: few networks have stages
    ranks = make(graph, rank_names(offloads=asks_for_host(graph)), on_pass)  # a plan may ask for it, too
    return Compiled(config, traced, fed, graph, graph.attrs["compile_id"], stages, ranks, strategies)


def _of_all_ranks(
    config: Config, graph: Graph, names: Sequence[str], on_stage: OnStage | None, on_pass: OnPass | None,
    unnamed: bool = False,
) -> Graph:  # fmt: skip
    """Run the shared passes and return the graph after them, whose `compile_id` is empty if it is `unnamed`."""
    graph = run_shared_passes(graph, names, on_stage, PassManager(on_pass))
    graph.attrs["compile_id"] = "" if unnamed else identity(config.ranks, print_graph(graph))
    return graph


def _named(graph: Graph, config: Config, plan: PlanFile | None, with_layers: bool) -> StrategyNames:
    """Name the graph's operators, and give them the strategies of the plan, if any."""
    strategies = StrategyNames()
    strategies.name(graph, with_layers or plan is not None)
    if plan is not None:
        from mspc.passes.lib.choices import NotedPlan, note_plan
        from mspc.plans.contents import give_strategies

        plan = plan.for_operators(set(strategies.places.values()))
        give_strategies(strategies, graph, plan, config.strategies_from)
        noted = NotedPlan(
            config.strategies_from, plan.operators, plan.results, plan.parameters, plan.recompute, plan.gather_again,
            plan.loops, plan.offload, plan.offload_states,
        )  # fmt: skip
        note_plan(graph, noted, strategies.places)
    return strategies


def identity(ranks: int, text: str) -> str:
    """Return the identifier of a program, computed from the text after the shared passes."""
    return hashlib.sha256(f"{ranks}\n{text}".encode()).hexdigest()[:ID_LENGTH]


def _plan_of(config: Config) -> PlanFile | None:
    """Read the plan by which operators are sharded, or None. Raise MspcError on an invalid plan."""
    if not config.sharded or not config.strategies_from.endswith(SUFFIX):
        return None
    from mspc.plans.contents import check_ranks  # imported late: only a plan needs it

    with told_at(config.place_of(*STRATEGIES_FROM)):
        plan = read_plan(Path(config.strategies_from))
        check_ranks(plan, config.ranks, config.strategies_from)
    return plan


def _prepared(call: TracedCall, plan: PlanFile | None) -> Graph:
    """Return the traced graph with the header and input layouts that passes read."""
    config, traced, fed = call.config, call.traced, call.fed
    graph = traced.graph
    graph.attrs |= config.header()
    if config.sharded:
        graph.attrs["outputs"] = "batch" if config.dataset_strategy == "data_parallel" else "whole"
        if config.parallel_optimizer and (plan is None or plan.strategies is None):  # else the plan says where they are
            found = config.attributes(needs="enable_parallel_optimizer")
            graph.attrs |= {name: value for name, value in found.items() if value != LEVELS[0]}
            for parameter in graph.parameters:
                source = traced.parameters.get(parameter.name)
                if source is not None and not getattr(source, "parallel_optimizer", True):
                    parameter.attrs["parallel_optimizer"] = False
        if config.strategies_from and plan is None:
            with told_at(config.place_of(*STRATEGIES_FROM)):
                shard_as_in_file(graph, config.strategies_from)
    inputs = [p for p in graph.parameters if p.kind == "input"]
    if len(inputs) != len(fed):
        raise MspcError(f"the network takes {len(inputs)} tensors, but it is called with {len(fed)}", kind=TypeError)
    for parameter, how in zip(inputs, fed, strict=True):
        parameter.layout = how.layout if config.mode != "stand_alone" else None
        if how.graph_type != how.global_type:
            parameter.global_type = how.global_type
    return graph


def run_shared_passes(graph: Graph, names: Sequence[str], on_stage: OnStage | None, manager: PassManager) -> Graph:
    """Run the passes that all ranks share.

    The result of a view is reported but not used further. A pass of `OPTIONAL` that changed nothing leaves no trace.
    `on_stage` must not change the graphs.
    """
    _report(on_stage, "frontend", 0, graph, True, "")
    previous = "frontend"
    idle = idle_passes(
        regions=any(node.regions for node in graph.nodes), offloads=asks_for_host(graph),
        staged=STAGES in graph.attrs, quantizes="fp8_format" in graph.attrs,
    )  # fmt: skip
    for number, name in numbered(names):
        if name in idle:
            continue
        result, changed = manager.apply(find_pass(name), graph)
        if name in OPTIONAL and not changed:
            continue
        _report(on_stage, name, number, result, changed, previous)
        if name not in VIEWS:
            graph, previous = result, name
    return graph


def _report(on_stage: OnStage | None, name: str, number: int, graph: Graph, changed: bool, previous: str) -> None:
    if on_stage is not None:
        text = cache(partial(print_graph, graph))  # computed once for all that read it
        on_stage(DumpPoint(name, file_of(number, name), graph, None, changed, previous, text))


# Finds gradients that no collective of the script reduces, in stand-alone and hybrid mode -------------
# These modes run the script's own collectives as written. Every rank feeds its own rows, so values computed from them
# differ between ranks until a collective makes them agree. A parameter updated by such a value differs between ranks
# from the first step on.


LISTED = 8
"""Number of parameter names that the warning lists."""


def warning_of_own_gradients(graph: Graph, mode: str) -> str:
    """Return the warning for a differentiated graph in a mode whose communication is written in the script. Return ""
    if all gradients are reduced, and in stand-alone mode if the graph has no communication: each rank is then a
    separate job."""
    names = unreduced(graph) if decided_by_script(graph, mode) else []
    if not names:
        return ""
    return (
        f"{mode} mode runs the script's own collectives only, and none of them reduces the gradients of "
        f"{listed(names, LISTED)}: they will differ between ranks; use parallel_mode='data_parallel', reduce the "
        "gradients with nn.DistributedGradReducer or ops.AllReduce() before the update, or mark parameters that may "
        "differ with layerwise_parallel=True"
    )


def decided_by_script(graph: Graph, mode: str) -> bool:
    """Return whether only the script's own collectives define how ranks compute together, so that no single device
    computes the same: in hybrid mode, and in stand-alone mode if the graph has collectives."""
    meets = any(isinstance(node.op, Collective) and node.op.communicates for node in graph.all_nodes())
    return mode == "hybrid_parallel" or (mode == "stand_alone" and meets)


def unreduced(graph: Graph) -> list[str]:
    """Return the names of parameters, in the order of the graph, that are updated from values of one rank only, or
    whose gradient of this kind is returned. Those with `layerwise_parallel` differ by intent."""
    own = own_values(graph)
    gradients = {name for node in graph.nodes for name in gradient_names(node)}
    updated: set[str] = set()
    found: set[str] = set()
    for node in graph.nodes:
        written = [node.inputs[i] for i in getattr(node.op, "mutates", ()) if i < len(node.inputs)]
        members = [each for value in written for each in (value.inputs if is_stack_of_parameters(value) else [value])]
        names = {value.name for value in members if isinstance(value, Parameter)} & gradients
        updated |= names
        if not _agrees(node) and any(value in own for value in node.inputs if value not in written):
            found |= names
    for value in graph.results:
        if isinstance(value, Node) and value in own:
            found |= set(gradient_names(value)) - updated
    return [p.name for p in graph.parameters if p.name in found and not p.attrs.get("layerwise_parallel")]


def own_values(graph: Graph) -> set[Value]:
    """Return the values that depend on this rank's own data and did not pass through a collective that makes ranks
    agree."""
    own: set[Value] = {p for p in graph.parameters if p.kind == "input" or p.attrs.get("layerwise_parallel")}
    for node in graph.nodes:
        if not _agrees(node) and any(value in own for value in node.inputs):
            own.add(node)
    return own


def _agrees(node: Node) -> bool:
    """Return whether a node's results are equal on all ranks: it is a collective, or runs a graph with such a
    collective. Results of a region are not tracked one by one, so the check never reports a reduced gradient as
    missing."""
    agrees = isinstance(node.op, Collective) and node.op.agrees
    return agrees or any(_agrees(inner) for region in node.regions for inner in region.nodes)
