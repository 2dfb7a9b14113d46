"""Computes what a compiled plan costs on the rank that takes the longest, with remarks and the plan's file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mspc.analysis.cost.missing_rates import missing_rates
from mspc.analysis.cost.nodes import least_seconds, sent_bytes
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.compiler.driver import Compiled
from mspc.compiler.run_graph import run_graph
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, asks_for_host
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import each_of_cells
from mspc.ops.control.regions import nodes_with_times
from mspc.output.programs import config_of
from mspc.passes.lib.plan_header import GIVEN, MILLION
from mspc.passes.lib.propagation import why_not_sharded
from mspc.plans.files.plan_file import PlanFile
from mspc.runtime.memory_plan import peak_of, plan_memory
from mspc.runtime.workspaces import workspace_bytes
from mspc.search.plans.alternatives import Alternative, PlanRequest
from mspc.search.plans.degrees import degrees_of
from mspc.search.plans.limited import PlanMemory
from mspc.search.plans.rank_loads import RankLoads, rank_loads
from mspc.search.plans.regions import layers_alike
from mspc.search.plans.row import PlanResult, Remarks


@dataclass(frozen=True)
class Outcome:
    """What a way comes to. file: its plan's. configured: whether the script has sharded operators itself."""

    plan: PlanResult
    file: PlanFile
    configured: bool

    @classmethod
    def of(cls, plan: PlanResult, compiled: Compiled, captured: CapturedCall, asked: PlanRequest) -> Outcome:
        """Of a plan and its program. The file says the device, too, where that is not the script's own."""
        ranks = compiled.config.ranks
        device = asked.device if asked.device != config_of(captured, ranks).device else ""
        return cls(plan, replace(compiled.strategies.plan(ranks), device=device), is_configured(compiled))


def is_configured(compiled: Compiled) -> bool:
    """Whether the script has sharded operators itself."""
    return any(node.attrs.get("strategy_from") in GIVEN for each in compiled.graph.graphs() for node in each.nodes)


def remarked(remarks: Remarks, compiled: Compiled, asked: PlanRequest, way: Alternative) -> Remarks:
    """Remarks with what a way's program says by itself."""
    keeps = is_configured(compiled) and not (asked.free or way.free)
    reason = why_not_sharded(compiled.graph) if compiled.config.parallel_optimizer else ""
    return replace(remarks, keeps_strategies=keeps, reason=reason, alike=layers_alike(compiled.graph))


def as_run(compiled: Compiled, rank: int) -> Graph:
    """A rank's graph as the first step runs it, with the numbers that the script's Parameters hold."""
    parameters = compiled.traced.parameters
    return run_graph(compiled.rank_graph(rank), lambda scalar: float(parameters[scalar.name].array))[0]


def memory_of(graph: Graph, captured: CapturedCall, device: str) -> int:
    """Bytes at the peak of a rank's step, with what kernels take beside the memory plan."""
    return peak_of(graph) + workspace(graph, captured, device)


def plan_memory_of(compiled: Compiled, rank: int, captured: CapturedCall, asked: PlanRequest) -> PlanMemory:
    """What a program takes on a rank."""
    graph = as_run(compiled, rank)
    workspace_bytes = workspace(graph, captured, compiled.config.device)
    step = StreamTimeline(graph, asked.machine).total
    return PlanMemory(peak_of(graph) + workspace_bytes, workspace_bytes, step, graph)


def on_host_of(graph: Graph) -> int:
    """Bytes of a rank's step in the memory of its host."""
    return plan_memory(graph).on_host if asks_for_host(graph) else 0


def workspace(graph: Graph, captured: CapturedCall, device: str) -> int:
    """Bytes of a GPU that kernels take beside the memory plan; 0 on the CPU."""
    return workspace_bytes(graph) if device == "GPU" else 0


def figures(name: str, compiled: Compiled, captured: CapturedCall, asked: PlanRequest, limit: int = 0) -> PlanResult:
    """What a compiled launch comes to. Raises MspcError where it takes more memory than a limit that is not 0."""
    loads = rank_loads(compiled, asked.machine)
    graph = as_run(compiled, loads.slowest)
    memory = memory_of(graph, captured, compiled.config.device)
    if 0 < limit < memory:
        raise MspcError(f"it needs {memory} bytes of memory on a rank, and there are {limit}")
    return figures_of(name, compiled, loads, graph, memory, asked)


def figures_of(
    name: str, compiled: Compiled, loads: RankLoads, graph: Graph, memory: int, asked: PlanRequest
) -> PlanResult:
    """The same, of what is known already. graph: of the slowest rank; memory: bytes that it takes."""
    time, attrs = StreamTimeline(graph, asked.machine), compiled.graph.attrs
    cut_further, gathered_again = count_of(compiled.strategies.parameters), count_of(compiled.strategies.gathered)
    least = least_seconds(_as_often(compiled.graph), asked.ranks, asked.machine.under(attrs))
    least = min(time.total, least)
    return PlanResult(
        name=name,
        ranks=asked.ranks,
        mesh=asked.mesh,
        step=time.total,
        compute=time.compute,
        exposed=time.total - time.compute,
        nbytes=loads.most,
        mean_nbytes=loads.mean,
        rank=loads.rank,
        least=least,
        gap=1 - least / time.total if least else None,
        search_gap=_search_gap(attrs),
        memory=memory,
        collectives=sum(times.count for node, times in nodes_with_times(graph) if sent_bytes(node) > 0),
        recompute=tuple(compiled.strategies.recomputed),
        cut_further=cut_further,
        gathered_again=gathered_again,
        foreseen=attrs.get("search_held"),
        remarks=Remarks(
            degrees=degrees_of(compiled),
            on_host=on_host_of(graph),
            offload=tuple(compiled.strategies.offloaded),
            offload_states=compiled.strategies.states_offloaded,
            missing_rates=missing_rates([graph], asked.machine),
        ),
    )


def _as_often(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of its loops, as often as a step runs them, without the loops themselves."""
    return (node for node, times in nodes_with_times(graph) if not node.regions for _ in range(times.count))


def count_of(names: Iterable[str]) -> int:
    """How many parameters have these names, of which one may stand for those of equal layers."""
    return sum(1 for name in names for _ in each_of_cells(name))


def _search_gap(attrs: Mapping[str, Any]) -> float | None:
    """The share of what a plan costs the search that a better one could save at most; None where nothing is proved."""
    return attrs["search_open"] / MILLION if "search_open" in attrs else None
