"""Costs of a compiled plan on its slowest rank, with remarks and the plan file; and the programs of related
plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import least_seconds, seconds, sent_bytes
from mspc.analysis.cost.timeline import StreamTimeline, missing_rates
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Decide
from mspc.compiler.program_figures import LOOKED_AT, sent_by_each, sent_by_ranks
from mspc.compiler.rank_graphs import RankPlaces, run_graph
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.graph import Graph, Node, Value, asks_for_host
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import each_of_cells
from mspc.ops.control.regions import nodes_with_times
from mspc.output.programs import config_of
from mspc.passes.lib.choices import GIVEN, MILLION, MINIMAL_MEMORY, Terms, is_released
from mspc.passes.lib.propagation import why_not_sharded
from mspc.passes.lib.ranks import RankElement, neighbours, operand_type
from mspc.passes.per_rank.slice_to_rank import Shared, add_on_rank
from mspc.plans.files.plan_file import PlanFile
from mspc.runtime.memory_plan import peak_of, plan_memory
from mspc.runtime.workspaces import workspace_bytes
from mspc.search.layouts.within_memory import Limited, PlanCandidates, Values
from mspc.search.plans.alternatives import (
    LARGE,
    REPLICATED,
    Alternative,
    PlannedNetwork,
    PlanRequest,
    folded_layer_count,
)
from mspc.search.plans.degrees import degrees_of
from mspc.search.plans.limited import (
    CompiledFront,
    LimitedPlans,
    PlanCost,
    PlanMemory,
    SearchProblem,
    has_device_memory,
    quickest_on_host,
    share_of,
)
from mspc.search.plans.row import SEARCH, PlanResult


@dataclass(frozen=True)
class RankLoads:
    """Loads of ranks. most: maximum bytes that a rank sends in a step. rank: the first rank that sends them. mean:
    bytes over all ranks. slowest: the first rank with the longest total time of operators and collectives."""

    most: float
    rank: int
    mean: float
    slowest: int


def rank_loads(compiled: Compiled, machine: Machine) -> RankLoads:
    """Return the loads of a compiled program. Raise MspcError if no rank's graph can be made."""
    if compiled.config.pipeline_stages > 1:  # stages differ in more than positions
        sent = sent_by_ranks(compiled)
        return RankLoads(sent.most, sent.rank, sent.mean, sent.rank)
    ranks = range(min(LOOKED_AT, compiled.config.all_ranks))
    parts = _Parts(compiled.rank_graphs.places, machine.under(compiled.graph.attrs))
    own = {rank: parts.on(rank) for rank in neighbours(len(ranks))}
    if len(set(own.values())) == 1:  # no neighbour along any mesh axis differs
        own = dict.fromkeys(ranks, own[0])
    own |= {rank: parts.on(rank) for rank in ranks if rank not in own}
    slowest = max(ranks, key=lambda rank: (own[rank][1], -rank))
    graph = compiled.rank_graph(slowest)
    base = sum(sent_bytes(node) * times.count for node, times in nodes_with_times(graph)) - own[slowest][0]
    sent_by = [base + own[rank][0] for rank in ranks]
    most = max(sent_by)
    return RankLoads(most, sent_by.index(most), sum(sent_by) / len(sent_by), slowest)


def max_bytes_sent(compiled: Compiled, stages: Iterable[int], machine: Machine) -> float:
    """Return the bytes sent in a step by the rank of some stages that sends the most. If neighbouring ranks send
    equally many, only the first rank of each stage is computed. Raise MspcError like `rank_loads`."""
    count = compiled.config.ranks
    parts = _Parts(compiled.rank_graphs.places, machine.under(compiled.graph.attrs))
    alike = len({parts.on(rank)[0] for rank in neighbours(count)}) == 1
    looked = range(1 if alike else min(LOOKED_AT, count))
    return max(sent_by_each(compiled, [stage * count + rank for stage in stages for rank in looked]))


class _Parts:
    """Costs of the parts of a graph that depend on the rank."""

    def __init__(self, places: RankPlaces, machine: Machine) -> None:
        self.machine = machine
        self.positions = places.positions
        differing = set(places.positions.differing())
        self.nodes: dict[int, list[tuple[Node, int]]] = {}
        self.operands: dict[Value, Value] = {}
        for node in places.graph.nodes:
            number = places.positions.of_node.get(node)
            if number in differing and not is_released(node):
                self.nodes.setdefault(number, []).append((node, places.times.get(node, 1)))

    def on(self, rank: int) -> tuple[float, float]:
        """Return (bytes sent, total seconds) of a rank's parts in a step."""
        nbytes = time = 0.0
        shared: Shared = {}
        for number, nodes in self.nodes.items():
            part = self.positions.all[number].on(rank)
            # Nodes that operators share run once, so that each operator is computed by itself.
            shares = any(made.shared is not None for made in part.nodes)
            each = nodes if shares else [(nodes[0][0], sum(times for _, times in nodes))]
            for node, times in each:
                sent, took = self._of(node, part, shared)
                nbytes += times * sent
                time += times * took
        return nbytes, time

    def _of(self, node: Node, part: RankElement, shared: Shared) -> tuple[float, float]:
        made: list[Node] = []
        add_on_rank(made, node, [self._operand(node, i) for i in range(len(node.inputs))], part, shared)
        run = [each for each in made if not each.op.is_view]
        return sum(map(sent_bytes, run)), sum(seconds(each, self.machine) for each in run)

    def _operand(self, node: Node, index: int) -> Value:
        """Return the placeholder of an operand, which all its readers share."""
        return self.operands.setdefault(node.inputs[index], Value(operand_type(node, index)))


@dataclass(frozen=True)
class Outcome:
    """Outcome of a way. file: of its plan. configured: the script shards operators itself."""

    plan: PlanResult
    file: PlanFile
    configured: bool

    @classmethod
    def of(cls, plan: PlanResult, compiled: Compiled, captured: CapturedCall, asked: PlanRequest) -> Outcome:
        """Return the outcome of a plan and its program. The file includes the device if it differs from the
        script's."""
        ranks = compiled.config.ranks
        device = asked.device if asked.device != config_of(captured, ranks).device else ""
        return cls(plan, replace(compiled.strategies.plan(ranks), device=device), is_configured(compiled))


def is_configured(compiled: Compiled) -> bool:
    """Return whether the script shards operators itself."""
    return any(node.attrs.get("strategy_from") in GIVEN for node in compiled.graph.all_nodes())


def with_program_facts(compiled: Compiled, plan: PlanResult, asked: PlanRequest, way: Alternative) -> PlanResult:
    """Return the plan with the facts that follow from a way's program."""
    keeps = is_configured(compiled) and not (asked.free or way.free)
    reason = why_not_sharded(compiled.graph) if compiled.config.parallel_optimizer else ""
    return replace(plan, keeps_strategies=keeps, reason=reason, alike=folded_layer_count(compiled.graph))


def executed_graph(compiled: Compiled, rank: int) -> Graph:
    """Return a rank's graph as the first step executes it, with the values of the script's Parameters."""
    parameters = compiled.traced.parameters
    return run_graph(compiled.rank_graph(rank), lambda scalar: float(parameters[scalar.name].array))[0]


def memory_of(graph: Graph, device: str) -> int:
    """Return the bytes at the peak of a rank's step, including kernel workspaces outside the memory plan."""
    return peak_of(graph) + workspace(graph, device)


def plan_memory_of(compiled: Compiled, rank: int, asked: PlanRequest) -> PlanMemory:
    """Return the memory of a program on a rank."""
    graph = executed_graph(compiled, rank)
    workspace_bytes = workspace(graph, compiled.config.device)
    step = StreamTimeline(graph, asked.machine).total
    return PlanMemory(peak_of(graph) + workspace_bytes, workspace_bytes, step, graph)


def on_host_of(graph: Graph) -> int:
    """Return the bytes of host memory of a rank's step."""
    return plan_memory(graph).on_host if asks_for_host(graph) else 0


def workspace(graph: Graph, device: str) -> int:
    """Return the bytes of kernel workspaces outside the memory plan; 0 on the CPU."""
    return workspace_bytes(graph) if device == "GPU" else 0


def over_limit(memory: int, limit: int) -> str:
    """Return the message for a plan that exceeds the memory limit."""
    return f"it needs {shown_bytes(memory)} of memory on a rank, and the limit is {shown_bytes(limit)}"


def figures(name: str, compiled: Compiled, captured: CapturedCall, asked: PlanRequest, limit: int = 0) -> PlanResult:
    """Return the costs of a compiled launch. Raise MspcError if it exceeds a memory limit other than 0."""
    loads = rank_loads(compiled, asked.machine)
    graph = executed_graph(compiled, loads.slowest)
    memory = memory_of(graph, compiled.config.device)
    if 0 < limit < memory:
        raise MspcError(over_limit(memory, limit))
    return figures_of(name, compiled, loads, graph, memory, asked)


def figures_of(
    name: str, compiled: Compiled, loads: RankLoads, graph: Graph, memory: int, asked: PlanRequest
) -> PlanResult:
    """Return the same from known parts. graph: of the slowest rank. memory: its bytes."""
    time, attrs = StreamTimeline(graph, asked.machine), compiled.graph.attrs
    cut_further, gathered_again = count_of(compiled.strategies.parameters), count_of(compiled.strategies.gathered)
    nodes = nodes_with_times(compiled.graph)  # those of loops as often as a step runs them
    every = (node for node, times in nodes if not node.regions for _ in range(times.count))
    least = least_seconds(every, asked.ranks, asked.machine.under(attrs))
    least = min(time.total, least)
    return PlanResult(
        name=name, ranks=asked.ranks, mesh=asked.mesh, step=time.total, compute=time.compute,
        exposed=time.total - time.compute, nbytes=loads.most, mean_nbytes=loads.mean, rank=loads.rank, least=least,
        gap=1 - least / time.total if least else None, memory=memory,
        search_gap=attrs["search_open"] / MILLION if "search_open" in attrs else None,
        collectives=sum(times.count for node, times in nodes_with_times(graph) if sent_bytes(node) > 0),
        recompute=tuple(compiled.strategies.recomputed), cut_further=cut_further, gathered_again=gathered_again,
        foreseen=attrs.get("search_held"), degrees=degrees_of(compiled), on_host=on_host_of(graph),
        offload=tuple(compiled.strategies.offloaded), offload_states=compiled.strategies.states_offloaded,
        missing_rates=missing_rates([graph], asked.machine),
    )  # fmt: skip


def count_of(names: Iterable[str]) -> int:
    """Return the number of parameters with these names; one name may represent the parameters of equal layers."""
    return sum(1 for name in names for _ in each_of_cells(name))


# Programs of the search's plan and of related plans, one of which may be faster -----------------------
# The search adds up operators and collectives one by one, and does not know which of them will be fused, overlapped
# or combined.


RELATED = 1000
"""Maximum number of operators of a network, including gradients, for which related plans are compiled."""
SHARES = (0.9, 0.75, 0.5)
"""Memory limits of related plans, as shares of the memory of the search's plan."""
TABLE = 1 << 13
"""Maximum number of elements of a table in the search for related plans, which need no proof."""
TRIED = "with optimizer states and activations on the host it does not fit either"
SMALL = 300
"""Maximum number of a rank's operators for which many plans are compiled."""


class SearchedNetwork:
    """Search for one network. way: the settings of the search."""

    def __init__(self, network: PlannedNetwork, asked: PlanRequest, way: Alternative) -> None:
        self.network, self.asked, self.way = network, asked, way
        self._made: set[Values] = set()
        self._busiest: tuple[Compiled, RankLoads] | None = None
        """The program with the loads computed last, and the loads."""
        self._taken: PlanMemory | None = None
        """Memory of the plan within the limit, on that rank."""
        self.deadline = time.monotonic() + asked.seconds if asked.seconds else float("inf")

    def quickest(self) -> Outcome:
        """Return the fastest of the search's plan and its related plans, by the estimated step. Raise MspcError if none
        is within the memory limit."""
        best, refusal = None, None
        try:
            compiled = self._within() if self.asked.memory else self.plain
            plan = with_program_facts(compiled, self._figures_of(compiled), self.asked, self.way)
            best = Outcome.of(plan, compiled, self.network.captured, self.asked)
        except MspcError as error:
            if not self.asked.memory:
                raise
            refusal = error
        for name, make in self._relatives():
            if time.monotonic() > self.deadline:
                break
            best = self._better(best, name, make)
        if best is None:
            assert refusal is not None
            raise refusal
        return best

    def _figures_of(self, compiled: Compiled) -> PlanResult:
        """Return the costs of the found plan; some are already known if it was found within a limit."""
        taken = self._taken
        if taken is None or self._busiest is None or self._busiest[0] is not compiled:
            return figures(SEARCH, compiled, self.network.captured, self.asked, self.asked.memory)
        return figures_of(SEARCH, compiled, self._busiest[1], taken.graph, taken.bytes, self.asked)

    def _better(self, best: Outcome | None, name: str, make: Callable[[], Compiled | None]) -> Outcome | None:
        """Return the best outcome so far, or that of a related plan if it is faster."""
        try:
            other = make()
            if other is None:
                return best
            plan = figures(SEARCH, other, self.network.captured, self.asked, self.asked.memory)
        except MspcError:
            return best
        if best is not None and plan.step >= best.plan.step:
            return best
        own = best.plan if best is not None else with_program_facts(self.plain, plan, self.asked, self.way)
        facts = {key: getattr(own, key) for key in ("keeps_strategies", "reason", "alike")}
        plan = replace(plan, taken_from=name, **facts)
        found = Outcome.of(plan, other, self.network.captured, self.asked)
        return replace(found, configured=is_configured(self.plain))

    def _relatives(self) -> Iterator[tuple[str, Callable[[], Compiled | None]]]:
        """Yield (name, function) for every related plan; only the last depends on the memory limit. A function returns
        None if the plan was compiled before."""
        if len(self.network.call.traced.graph.nodes) > RELATED or len(self.plain.graph.nodes) > RELATED:
            return
        if self.asked.memory:
            yield "a search without a limit", lambda: self.plain
        if self.front is not None:
            yield "a search among compiled plans", partial(self._fastest_of, self.front)
        yield "a search by bytes alone", self._by_bytes
        for limit in self._smaller_limits() if self.front is None else ():  # the front has them
            yield f"a search within {limit} bytes of memory", partial(self._near, limit)
        if self.asked.free or not is_configured(self.plain):
            yield "replication on all ranks", partial(self.network.compiled, REPLICATED)

    @cached_property
    def plain(self) -> Compiled:
        """The search's plan without a limit of memory. Raise MspcError if it does not compile."""
        return self.network.compiled(self.way)

    @cached_property
    def problem(self) -> SearchProblem:
        """The search problem of the network. Raise MspcError if it cannot be sharded."""

        def compiled(config: Config, decide: Decide) -> Compiled:
            return self.network.compiled(self.way, config, decide=decide)

        return SearchProblem(self.network.config, compiled)

    @cached_property
    def _solver(self) -> Limited:
        return self.problem.solver(TABLE, proves=False)

    def _by_bytes(self) -> Compiled:
        """Return the search's plan if only sent bytes count, with small tables."""
        own = self.network.config.search_terms
        terms = Terms(mesh=own.mesh, milliseconds=own.milliseconds)
        way = replace(self.way, settings={**self.way.settings, "search_mode": "recursive_programming"})
        compiled = self.network.compiled(way, replace(self.network.config, search_terms=terms))
        compiled.graph.attrs.pop("search_open", None)  # the gap of another sum
        return compiled

    def _smaller_limits(self) -> list[int]:
        peak = memory_of(executed_graph(self.plain, 0), self.network.config.device)
        return [int(peak * share) for share in SHARES]

    def _near(self, limit: int) -> Compiled | None:
        """Return the plan within a limit of predicted memory; None if it was compiled before."""
        values = self._solver.solve(limit).values
        if values in self._made:
            return None
        self._made.add(values)
        return self._compiled(values)

    @cached_property
    def front(self) -> CompiledFront | None:
        """Front of compiled plans of a small network; None for a larger one, or if the search cannot shard it."""
        if len(self.plain.rank_graph(0).nodes) > SMALL:
            return None
        try:
            candidates = PlanCandidates(self.problem.model, self._solver.memory)
        except MspcError:
            return None
        if not candidates.is_small:
            return None
        seconds_per_byte = 1 / self.asked.machine.link.bandwidth.at(LARGE)
        found: list[Values] = []
        for limit in (MINIMAL_MEMORY, *self._smaller_limits()):
            with suppress(MspcError):  # less than the least
                found.append(self._solver.solve(limit).values)
        front = CompiledFront(candidates, self._cost_of, seconds_per_byte, self.deadline, found)
        front.explore()
        return front if front.front else None

    def _cost_of(self, values: Values) -> PlanCost:
        program = self.problem.compiled(values)
        rank = rank_loads(program, self.asked.machine).slowest
        taken = plan_memory_of(program, rank, self.asked)
        return PlanCost(taken.bytes, taken.step, len(taken.graph.nodes))

    def _fastest_of(self, front: CompiledFront) -> Compiled | None:
        """Return the fastest compiled plan; None with a memory limit, for which `_within` selects the plan."""
        values = None if self.asked.memory else front.fastest()
        return None if values is None else self._compiled(values)

    def _compiled(self, values: Values) -> Compiled:
        """Return the program of an assignment, with its gap to the unlimited bound."""
        return self.problem.compiled(values, share_of(self._solver.first.bound, self._solver.costs.total(values)))

    def _within(self) -> Compiled:
        """Return the search's plan within the memory limit. Raise MspcError if none was found."""

        def taken(program: Compiled, rank: int) -> PlanMemory:
            return plan_memory_of(program, rank, self.asked)

        def busiest(program: Compiled) -> int:
            self._busiest = program, rank_loads(program, self.asked.machine)
            return self._busiest[1].slowest

        plans, refusal = LimitedPlans(self.problem, self.asked.memory, taken, busiest, self.front), None
        try:
            own = plans.quickest()
        except MspcError as error:
            own, refusal = None, error
        has_host = has_device_memory(self.network.config.device)
        offloaded = quickest_on_host(plans, self.asked.machine) if has_host else None
        if offloaded is not None:
            return offloaded.compiled
        self._taken = None if plans.best is None else plans.best.taken
        if own is None:
            assert refusal is not None
            notes = [*refusal.notes, *[TRIED] * has_host]
            raise MspcError(refusal.message, refusal.location, notes, code=refusal.code)
        return own
