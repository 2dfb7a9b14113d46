"""Comparison of the plans of one launch: the search's plan, and the usual ways to shard a network."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mspc.analysis.cost.timeline import StreamTimeline, missing_rates
from mspc.compiler.driver import Compiled, compile_call
from mspc.engine.capture import CapturedCall
from mspc.engine.strategy_files import sharded_by_file
from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.output.programs import config_of
from mspc.plans.files.plan_file import PlanFile
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import plan_memory
from mspc.search.plans.alternatives import CONFIGURED, Alternative, PlannedNetwork, PlanRequest, all_ways
from mspc.search.plans.figures import (
    Outcome,
    RankLoads,
    SearchedNetwork,
    executed_graph,
    figures,
    figures_of,
    memory_of,
    over_limit,
    plan_memory_of,
    rank_loads,
    with_program_facts,
)
from mspc.search.plans.limited import HostMemoryUse, Offloading, PlanMemory, has_device_memory
from mspc.search.plans.row import DATA_PARALLEL, SEARCH, PlanResult, Plans, UsualPlans, adopt_faster, mark_equal_plans

MAX_PROCESSES = 3
"""Maximum number of calls that run at once; each holds a complete compile in memory."""


class ForkedCalls:
    """Calls without arguments in forked processes, as a context manager that ends the processes. All are forked at once
    and inherit the current state; a semaphore limits how many run. Results return through pipes."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        context = multiprocessing.get_context("fork")
        self._begin = context.Semaphore(max(1, min(MAX_PROCESSES, len(os.sched_getaffinity(0)) - 1)))
        self._ends: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for call in calls:
            end, other = context.Pipe(duplex=False)
            process = context.Process(target=self._run, args=(call, other), daemon=True)
            process.start()
            other.close()
            self._ends.append(end)
            self._processes.append(process)

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self._processes)

    def one_more(self) -> None:
        """Allow one more call to run, because this process is idle."""
        self._begin.release()

    def result(self, index: int) -> Any:
        """Wait for a call and return its result; None if it raised or its process ended."""
        try:
            return self._ends[index].recv()
        except EOFError:
            return None

    def _run(self, call: Callable[[], Any], end: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that forked this one ends it
        gc.freeze()  # objects made before stay until the end
        with suppress(Exception):  # the reader of the result makes the call itself, and sees the error
            with self._begin:
                found = call()
            end.send(found)  # other calls may run: writing the result may block until it is read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, end in zip(self._processes, self._ends, strict=True):
            process.terminate()
            process.join()
            end.close()


def can_fork() -> bool:
    """Return whether this process can fork, and there is another core."""
    return "fork" in multiprocessing.get_all_start_methods() and len(os.sched_getaffinity(0)) > 1


def parallel_results(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of calls without arguments, in order; the calls run in parallel if possible."""
    if len(calls) < 2 or not can_fork():
        return [call() for call in calls]
    with ForkedCalls(calls) as forked:
        forked.one_more()
        results = (forked.result(i) for i in range(len(calls)))
        return [call() if result is None else result for call, result in zip(calls, results, strict=True)]


# Usual plans are first tried with equal layers folded into one graph, at the cost of compiling one layer. The table
# shows only the best plan over the ranks of a matmul. A plan far from any good one is not compiled unfolded.


SLOWER = "data parallel is faster with equal layers as one graph"
FAR = 5
"""Ratio of a plan's step to the lower bound of all plans above which it is far from any good plan."""


CERTAIN_FACTOR = 1.5
"""Ratio of folded step time or memory to its limit above which the unfolded plan exceeds the limit, too."""


@dataclass(frozen=True)
class FoldedTries:
    """Results with equal layers folded. slow: names of the ways with pairs of matmuls that are slower than another of
    them or than data parallel, with a message or "". far: outcome of data parallel if it is far from any good plan.
    over: names of ways that are far from any good plan and exceed the memory, with messages. pairs: within a memory
    limit, the remaining ways with pairs of matmuls, fastest first, up to the first that fits."""

    slow: Mapping[str, str] = field(default_factory=dict[str, str])
    far: Outcome | None = None
    over: Mapping[str, str] = field(default_factory=dict[str, str])
    pairs: Sequence[str] = ()


def folded_network(captured: CapturedCall, asked: PlanRequest, ways: Sequence[Alternative]) -> PlannedNetwork | None:
    """Return the network with equal layers folded, to try ways with; None if no layers are equal or there is no
    choice."""
    if sum(way.tensor > 0 for way in ways) < 2:
        return None
    try:
        config = replace(asked.config(captured), device="CPU")  # on other devices no layers are one graph
        return PlannedNetwork.read_folded(captured, config, asked.free)
    except MspcError:
        return None


def folded_tries(network: PlannedNetwork, asked: PlanRequest, ways: Sequence[Alternative]) -> FoldedTries:
    """Try pairs of matmuls, and data parallel."""
    found: dict[str, Outcome] = {}
    for way in ways:
        if not way.tensor and way.name != DATA_PARALLEL:
            continue
        try:
            compiled = network.compiled(way)
            plan = figures(way.name, compiled, network.captured, asked)
        except MspcError:  # the table reports the reason
            continue
        plan = with_program_facts(compiled, plan, asked, way)
        found[way.name] = Outcome.of(plan, compiled, network.captured, asked)
    best = min(found, key=lambda name: found[name].plan.step, default="")
    pairs = [way.name for way in ways if way.tensor and way.name in found]
    shared = found.get(DATA_PARALLEL)
    on_cpu = asked.config(network.captured).device == "CPU"
    if asked.memory:
        over = {name: _over(each.plan, asked.memory) for name, each in found.items() if on_cpu}
        over = {name: said for name, said in over.items() if said}
        left = [name for name in pairs if name not in over]
        return FoldedTries(over=over, pairs=sorted(left, key=lambda name: found[name].plan.step))
    far = shared if shared is not None and on_cpu and shared.plan.step > FAR * shared.plan.least > 0 else None
    if best == DATA_PARALLEL:
        return FoldedTries(dict.fromkeys(pairs, SLOWER), far)
    return FoldedTries({name: "" for name in pairs if name != best}, far)


def _over(plan: PlanResult, memory: int) -> str:
    """Return the message for a plan whose folded time and memory exceed the limits by `CERTAIN_FACTOR`; "" for
    others."""
    if not (plan.step > CERTAIN_FACTOR * FAR * plan.least > 0 and plan.memory > CERTAIN_FACTOR * memory):
        return ""
    return (
        f"with equal layers as one graph {over_limit(plan.memory, memory)}; its step is far from any "
        "good one, and nothing was tried"
    )


SLICES = {"parallel_optimizer": True, "parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": -1}
"""Settings that shard every update over the ranks with replicas."""
SMALLER, AGAIN = "smaller slices of parameters and states", "computing cells again"


@dataclass(frozen=True)
class Variant:
    """Usual plan with less memory. words: description of the change. settings: changed settings of `Config`. recompute:
    cells are recomputed for gradients."""

    words: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recompute: bool = False


def variants_of(graph: Graph) -> tuple[list[Variant], list[Variant]]:
    """Return two lists of variants of a compiled plan: the fastest of the first that fits is taken, and the second is
    tried if none fits. Both are empty if nothing is trained."""
    phases = {node.phase for node in graph.nodes}
    slices = [Variant(SMALLER, SLICES)] if "update" in phases else []
    recompute = [Variant(AGAIN, recompute=True)] if "backward" in phases else []
    return slices + recompute, [
        Variant(f"{SMALLER} and {AGAIN}", SLICES, recompute=True)
    ] if slices and recompute else []


LARGE_GRAPH = 1000
"""Number of operators above which a plan far from any good one gets no variants."""


@dataclass(frozen=True)
class _Program:
    """Program of a way. words: description of the measures to lower memory, or "". graph: of the slowest rank. memory:
    its bytes."""

    way: Alternative
    words: str
    compiled: Compiled
    loads: RankLoads
    graph: Graph
    memory: int

    @cached_property
    def plan(self) -> MemoryPlan:
        """The memory plan of the slowest rank."""
        return plan_memory(self.graph)


class FittedWay:
    """A usual way to shard a network within the available memory."""

    def __init__(self, network: PlannedNetwork, asked: PlanRequest, way: Alternative) -> None:
        self.network, self.asked, self.way = network, asked, way
        self.captured, self.limit = network.captured, asked.memory or math.inf
        self.tried: list[str] = []
        self.left_out: list[str] = []
        self.is_far = False

    def quickest(self) -> tuple[Compiled, PlanResult]:
        """Return the way's program and plan; if it exceeds the memory, the fastest variant that fits, except for the
        unchanged script. Raise MspcError if none fits."""
        own = self._program(self.way)
        if own.memory <= self.limit:
            return own.compiled, self._figures(own)
        best: tuple[Compiled, PlanResult] | None = None
        over = [own]
        for program in () if self.way.name == CONFIGURED.name else self._variants(own):
            if program.memory > self.limit:
                over.append(program)
            else:
                plan = self._fitted_figures(own, program, program.words)
                best = (program.compiled, plan) if best is None or plan.step < best[1].step else best
        if self.way.name != CONFIGURED.name and not self.is_far and has_device_memory(own.compiled.config.device):
            best = self._on_host(own, over, best)
        if best is not None:
            return best
        least = min(program.memory for program in over)
        also = f"; {', '.join(self.tried)} were tried, and {shown_bytes(least)} is the least" if self.tried else ""
        also += f"; {', '.join(self.left_out)} cannot be enough" if self.left_out else ""
        also = "; its step is far from any good one, and nothing was tried" if self.is_far else also
        raise MspcError(over_limit(own.memory, self.limit) + also)

    def _variants(self, own: _Program) -> Iterator[_Program]:
        """Yield the programs of variants that may fit: with smaller slices, with recomputed cells, and with both if
        neither fits."""
        fits, last = False, own
        if len(own.graph.nodes) > LARGE_GRAPH:  # far from any good plan, with any variant
            plan = self._figures(own)
            self.is_far = plan.step > FAR * plan.least > 0
        if self.is_far:
            return
        for variants in variants_of(own.compiled.graph):
            for variant in () if fits else variants:
                if _memory_bound(last, variant) > self.limit:
                    self.left_out.append(variant.words)
                    continue
                way = replace(self.way, settings={**self.way.settings, **variant.settings}, recompute=variant.recompute)
                try:
                    program = self._program(way, variant.words)
                except MspcError:
                    continue
                self.tried.append(variant.words)
                fits |= program.memory <= self.limit
                last = program if variant.words == AGAIN else last
                yield program

    def _on_host(
        self, own: _Program, over: list[_Program], best: tuple[Compiled, PlanResult] | None
    ) -> tuple[Compiled, PlanResult] | None:
        """Return the best plan including those with offloads, made from the programs that exceed the memory."""
        machine = self.asked.machine
        taken = [(PlanMemory(p.memory, 0, StreamTimeline(p.graph, machine).total, p.graph), p) for p in over]
        for memory, program in sorted(taken, key=lambda each: each[0].step):
            offloading = Offloading(partial(self._make, program.way), self._measured, int(self.limit), machine)
            found = offloading.quickest(memory, math.inf if best is None else best[1].step)
            if found is not None:
                words = " and ".join(filter(None, (program.words, found.on_host.words)))
                made = self._program(program.way, words, found.compiled)
                best = found.compiled, self._fitted_figures(own, made, words)
        self.tried.append("copies on the host")
        return best

    def _make(self, way: Alternative, on_host: HostMemoryUse) -> Compiled:
        return self.network.compiled(way, decide=on_host.mark)

    def _measured(self, compiled: Compiled) -> PlanMemory:
        return plan_memory_of(compiled, rank_loads(compiled, self.asked.machine).slowest, self.asked)

    def _program(self, way: Alternative, words: str = "", compiled: Compiled | None = None) -> _Program:
        compiled = compiled or self.network.compiled(way)
        loads = rank_loads(compiled, self.asked.machine)
        graph = executed_graph(compiled, loads.slowest)
        memory = memory_of(graph, compiled.config.device)
        return _Program(way, words, compiled, loads, graph, memory)

    def _figures(self, program: _Program) -> PlanResult:
        return figures_of(self.way.name, program.compiled, program.loads, program.graph, program.memory, self.asked)

    def _fitted_figures(self, own: _Program, program: _Program, words: str) -> PlanResult:
        return replace(self._figures(program), made_to_fit=words, otherwise=own.memory)


def _memory_bound(program: _Program, variant: Variant) -> int:
    """Return a lower bound of the bytes of a variant. Slices save at most all stored bytes and gradients, except for
    weights that gradients read, which are gathered once and stay live. Recomputation saves no stored bytes."""
    plan = program.plan
    if variant.settings != SLICES:
        return plan.weights + plan.states + plan.inputs + plan.constants
    least = program.memory - plan.weights - plan.states - plan.gradients
    read = {value for node in program.graph.nodes if node.phase == "backward" for value in node.inputs}
    whole = sum(p.type.nbytes for p in program.graph.parameters if p in read and p.trainable)
    if variant.recompute and not program.way.recompute:
        return whole
    return max(least, plan.activations + whole)


@dataclass(frozen=True)
class _Refused:
    """Failed search. configured: the script gives strategies."""

    error: MspcError
    configured: bool


def plans_for(
    captured: CapturedCall, asked: PlanRequest, on_way: Callable[[str], None] | None = None,
    ways: Sequence[Alternative] | None = None,
    usual: UsualPlans | None = None,
) -> Plans:  # fmt: skip
    """Compile a launch in every way.

    captured: the launch to shard. on_way: called with the name of every way before it is tried. ways: all if None; the
    search is the first. usual: existing plans of omitted ways. Raise MspcError if the search's plan does not compile,
    or no plan fits the memory.
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
    mark_equal_plans(plans, files)
    adopt_faster(plans, files, usual, asked.mesh)
    if refusal is not None and SEARCH not in files:
        raise refusal
    return Plans(sorted(plans, key=lambda plan: (plan.step, plan.nbytes)), list(dict.fromkeys(refused)), files, usual)


def _outcomes(
    captured: CapturedCall, asked: PlanRequest, ways: Sequence[Alternative], on_way: Callable[[str], None]
) -> Iterator[tuple[Alternative, Outcome | str | _Refused]]:
    """Yield the outcome of every way, or the reason for its absence, in order. The search runs in this process; for a
    large network, the others run in forks. If the search finds no plan within a memory limit, others may. Raise its
    other MspcErrors."""
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
    """Ways that one process tries. folded: the network with equal layers folded, to skip hopeless ways; None to skip
    none."""

    ways: Sequence[Alternative]
    folded: PlannedNetwork | None = None


def _tasks(network: PlannedNetwork, asked: PlanRequest, ways: Sequence[Alternative], is_large: bool) -> list[_Task]:
    folded = folded_network(network.captured, asked, ways) if is_large else None
    if folded is None:
        return [_Task((way,)) for way in ways]
    tried = [way for way in ways if way.tensor or way.name == DATA_PARALLEL]
    return [*(_Task((way,)) for way in ways if way not in tried), _Task(tried, folded)]


def _outcomes_of(network: PlannedNetwork, asked: PlanRequest, task: _Task) -> dict[str, Outcome | str]:
    """Return the outcomes of a task's ways by name, without ways that are skipped silently."""
    tries = FoldedTries() if task.folded is None else folded_tries(task.folded, asked, task.ways)
    found: dict[str, Outcome | str] = {}
    order, fits = {name: place for place, name in enumerate(tries.pairs)}, False
    for way in sorted(task.ways, key=lambda way: order.get(way.name, -1)):
        if way.name in tries.over:
            found[way.name] = tries.over[way.name]
        elif way.name in order and fits:
            continue  # an earlier one is quicker
        elif way.name in tries.slow:
            found |= {way.name: tries.slow[way.name]} if tries.slow[way.name] else {}
        elif way.name == DATA_PARALLEL and tries.far is not None:
            found[way.name] = tries.far
        else:
            found[way.name] = outcome = _outcome(network, asked, way)
            fits |= way.name in order and isinstance(outcome, Outcome) and not outcome.plan.made_to_fit
    return found


def _outcome(network: PlannedNetwork, asked: PlanRequest, way: Alternative) -> Outcome | str:
    """Return the outcome of a usual way, or the message why there is none."""
    try:
        compiled, plan = FittedWay(network, asked, way).quickest()
    except MspcError as error:
        return error.message
    plan = with_program_facts(compiled, plan, asked, way)
    return Outcome.of(plan, compiled, network.captured, asked)


def plan_of_file(captured: CapturedCall, asked: PlanRequest, file: Path) -> PlanResult:
    """Return the costs of a launch that is sharded by a plan file. Raise MspcError if it does not compile."""
    captured = replace(captured, context=sharded_by_file(captured.context, file))
    own = config_of(captured, asked.ranks)
    own = replace(own, device=asked.device or own.device)
    compiled = compile_call(captured.target, captured.args, own, None, captured.global_types)
    found = figures(file.stem, compiled, captured, asked)
    if own.pipeline_stages == 1:
        return found
    from mspc.search.stages.costing import graphs_of_stages, step_seconds  # imported late: few networks have stages

    missing = missing_rates(graphs_of_stages(compiled), asked.machine)
    return replace(found, step=step_seconds(compiled, asked.machine), gap=None, missing_rates=missing)
