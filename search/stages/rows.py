"""What a way to run stages comes to, by the program that it compiles to."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.missing_rates import MissingRate, missing_rates
from mspc.compiler.driver import Compiled
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import each_of_cells
from mspc.output.stage_times import StageTimes, predicted_times, stage_times, timeline_of
from mspc.plans.files.plan_file import PlanFile
from mspc.plans.files.stage_table import StagePlan
from mspc.search.plans.degrees import Degrees, degrees_of
from mspc.search.plans.figures import count_of, on_host_of
from mspc.search.plans.rank_loads import most_sent
from mspc.search.stages.costing import CostedUnits, memory_of, parts_of_units
from mspc.search.stages.network import StagedNetwork, plan_of
from mspc.search.stages.problem import Borders, Way
from mspc.search.stages.walk import Walk, walk_of


@dataclass(frozen=True)
class TimedRow:
    """What a row of the table says of times and bytes. ranks: of all stages. cells: of each chunk, how many units.
    step: seconds until the last stage has ended its updates. idle: the share of it in which stages wait, in the mean.
    nbytes: that the busiest rank sends; memory: bytes of the fullest, at its peak. foreseen: seconds that the choice
    has reckoned with, 0 where it has not. compiled: stages whose programs were made, others being equal to them. note:
    what there is to say of it."""

    name: str
    ranks: int
    stages: int
    schedule: str
    micro_batches: int
    cells: tuple[int, ...]
    step: float
    idle: float
    nbytes: float
    memory: int
    foreseen: float = 0.0
    compiled: int = 0
    note: str = ""


@dataclass(frozen=True)
class StageRow(TimedRow):
    """A row of the table. mesh: of the ranks of one stage, that layouts were searched for; "" for any.
    cut_further: parameters that are stored in smaller slices than operators read. recompute: cells that are computed
    again for gradients, equal ones in a row as one. degrees: of a stage's ranks, None of what is not compiled. on_host:
    bytes of the host's memory, of the rank that has most there; 0 of what is not compiled. offload: cells of which what
    gradients read is there, equal ones in a row as one; offload_states: states of optimizers are. missing_rates: what
    its times take rates of another element type for, () of what is not compiled."""

    mesh: str = ""
    cut_further: int = 0
    recompute: tuple[str, ...] = ()
    degrees: Degrees | None = None
    on_host: int = 0
    offload: tuple[str, ...] = ()
    offload_states: bool = False
    missing_rates: tuple[MissingRate, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """As `--json` has it."""
        return asdict(self)


def measured(
    name: str, network: StagedNetwork, way: Way, borders: Borders, machine: Machine, layouts: PlanFile
) -> tuple[StageRow, PlanFile]:  # fmt: skip
    """A row, compiled, and its plan's file. layouts: of operators. Raises MspcError where it does not compile."""
    plan = plan_of(network.units, way, borders)
    compiled = network.compiled(way.stages, plan, layouts=layouts)
    walk = walk_of(way.order)
    parts = parts_of_units(network.units)
    edges = (0, *borders, len(network.units))
    chunks = [tuple(parts[first:end]) for first, end in pairwise(edges)]
    stages = [tuple(chunks[chunk] for chunk in walk.schedule.chunks_of(stage)) for stage in range(way.stages)]
    on_host = {name for names in layouts.offload for name in each_of_cells(names)}
    copying = [any(on_host.intersection(u.cells) for u in network.units[first:end]) for first, end in pairwise(edges)]
    for stage, own in enumerate(stages):  # copies depend on the place in the schedule
        if any(copying[chunk] for chunk in walk.schedule.chunks_of(stage)):
            stages[stage] = (*own, (stage,))
    alike = [min((o for o in range(way.stages) if stages[o] == own), key=lambda o: -walk.kept(o)) for own in stages]
    graphs = {stage: compiled.rank_graph(stage * compiled.config.ranks) for stage in sorted(set(alike))}
    known = {stage: predicted_times(graph, machine) for stage, graph in graphs.items()}
    of_stages = [_of_chunks(known[like], walk, like, stage) for stage, like in enumerate(alike)]
    times = timeline_of(compiled.graph.attrs, of_stages)
    row = StageRow(
        name, network.config.ranks, way.stages, way.name, way.micro_batches,
        tuple(map(len, chunks)),
        times.makespan,
        sum(map(times.idle_share, range(way.stages))) / way.stages,
        most_sent(compiled, graphs, machine),
        max(memory_of(graph, network, compiled) for graph in graphs.values()),
        compiled=len(graphs), mesh=_mesh(network, way), cut_further=count_of(compiled.strategies.parameters),
        recompute=tuple(compiled.strategies.recomputed),
        degrees=degrees_of(compiled),
        on_host=max(map(on_host_of, graphs.values())),
        offload=tuple(compiled.strategies.offloaded), offload_states=compiled.strategies.states_offloaded,
        missing_rates=missing_rates(graphs.values(), machine),
    )  # fmt: skip
    return row, _file(compiled, plan)


def step_seconds(compiled: Compiled, machine: Machine) -> float:
    """The step of a program in stages, until the last one has ended its updates. Raises MspcError."""
    return stage_times(graphs_of_stages(compiled), machine).makespan


def graphs_of_stages(compiled: Compiled) -> list[Graph]:
    """The program of the first rank of every stage."""
    config = compiled.config
    return [compiled.rank_graph(stage * config.ranks) for stage in range(config.pipeline_stages)]


def planned(network: StagedNetwork, layouts: PlanFile) -> PlanFile:
    """The file of a plan, which says what loops carry, too; layouts: of operators, with the stages. Raises MspcError
    where it does not compile."""
    assert layouts.stages is not None
    plan = layouts.stages
    return _file(network.compiled(plan.count, plan, layouts=replace(layouts, stages=None)), plan)


def _file(compiled: Compiled, plan: StagePlan) -> PlanFile:
    return replace(compiled.strategies.plan(compiled.config.ranks), stages=replace(plan, tries=False))


def foreseen(
    name: str, network: StagedNetwork, known: CostedUnits, way: Way, borders: Borders, layouts: PlanFile | None = None
) -> StageRow:  # fmt: skip
    """A row of what is not compiled, by the costs of its units. layouts: None for those that costs are of."""
    costs = known.of(way)
    layouts = layouts or known.layouts
    walk, row = walk_of(way.order), np.array([borders], dtype=int).reshape(1, -1)
    without = "" if costs.work_of(way).any() else "; its memory is without buffers, which --memory looks at"
    seconds = float(walk.seconds(costs, row)[0])
    return StageRow(
        name, network.config.ranks, way.stages, way.name, way.micro_batches,
        tuple(b - a for a, b in pairwise((0, *borders, costs.count))), seconds, float(walk.idle(costs, row)[0]),
        float(walk.most_sent(costs, row)[0]), int(walk.memory(costs, row)[0]), seconds, 0,
        "is foreseen by its units, of which each kind was compiled as a stage: its program has "
        f"{network.operators(way.is_apart, way.parts)} forward operators{without}",
        _mesh(network, way), count_of(known.cut_further), layouts.recompute,
        offload=layouts.offload, offload_states=layouts.offload_states,
    )  # fmt: skip


def _mesh(network: StagedNetwork, way: Way) -> str:
    """The mesh that the layouts of a way were searched for; "" for any, and for layouts that were not."""
    return "" if way.tensor else network.config.search_terms.mesh


def _of_chunks(times: StageTimes, walk: Walk, like: int, stage: int) -> StageTimes:
    """The times of a stage by those of one that does the same to chunks of its own."""
    own = dict(zip(walk.schedule.chunks_of(like), walk.schedule.chunks_of(stage), strict=True))
    return times.like(own, like, stage, walk.schedule.placement)
