"""Facts of a whole compile, as its files tell them: its ranks and its pipeline; and the table of a compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

from mspc.analysis.cost.machine import H200, Machine
from mspc.commands.facts.graph import GraphFacts, StepTimes, TensorFact
from mspc.commands.facts.memory import MemoryRow, memory_row
from mspc.commands.facts.rows import (
    CollectiveRow,
    KernellessRow,
    OperatorRow,
    ParameterRow,
    SliceRow,
    collective_row,
    operator_rows,
    parameter_row,
    slice_rows,
    without_kernels,
)
from mspc.compiler.driver import Compiled
from mspc.ir.graph import STAGE, STAGES, WORK, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.opaque import Module
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import nodes_with_times
from mspc.runtime.program import PlanEntries, Program

if TYPE_CHECKING:
    from mspc.passes.lib.timeline import ScheduleTimeline


@dataclass(frozen=True)
class PipelineFacts:
    """A network in several stages, limited to the stages in the folder.

    count: of stages. stages: by number, the first kind of its ranks. timeline: predicted, of all stages; None if a
    program of a stage is missing, or they do not work on micro-batches.
    """

    count: int
    stages: Mapping[int, GraphFacts]
    timeline: ScheduleTimeline | None

    @property
    def is_whole(self) -> bool:
        """Whether there is a program for every stage."""
        return len(self.stages) == self.count

    @property
    def settings(self) -> dict[str, int | str]:
        """Numbers of stages and, with a schedule, of micro-batches and of chunks of all stages."""
        if self.timeline is None:
            return {"stages": self.count}
        schedule = self.timeline.schedule
        found: dict[str, int | str] = {"stages": self.count, "schedule": schedule.name}
        return found | {"micro-batches": schedule.micro_batches, "chunks": schedule.chunks}

    @property
    def step(self) -> float | None:
        """Predicted seconds of a step, including the waits between stages."""
        return None if self.timeline is None else self.timeline.makespan

    def idle(self, stage: int) -> float | None:
        """Return the share of a step in which a stage of the folder does not work."""
        return None if self.timeline is None or stage not in self.stages else self.timeline.idle_share(stage)

    def keeps(self, stage: int) -> int | None:
        """Return the most micro-batches that a stage of the folder holds at once."""
        return None if self.timeline is None or stage not in self.stages else self.timeline.kept(stage)

    @cached_property
    def borders(self) -> dict[tuple[int, int], tuple[int, int]]:
        """By (source, target), the messages of a step, and the bytes that a rank sends in them."""
        from mspc.ops.collective.point_to_point import SendToStage  # late: few programs have stages

        found: dict[tuple[int, int], tuple[int, int]] = {}
        for stage, kind in sorted(self.stages.items()):
            for node in kind.graph.nodes:
                if isinstance(node.op, SendToStage):
                    messages, nbytes = found.get((stage, node.op.stage), (0, 0))
                    found[stage, node.op.stage] = messages + 1, nbytes + node.type.nbytes
        return found


def stage_of(graph: Graph) -> int:
    """Return the number of the stage that a rank's graph runs."""
    return int(graph.attrs.get(STAGE, 0))


def pipeline_of(stages: Mapping[int, GraphFacts]) -> PipelineFacts | None:
    """Return the facts of a pipeline; None for one stage. stages: by number, the first kind of its ranks. Raise
    MspcError if their programs do not fit together."""
    graphs = [stages[stage].graph for stage in sorted(stages)]
    count = max((int(graph.attrs.get(STAGES, 1)) for graph in graphs), default=1)
    if count < 2:
        return None
    if len(stages) < count or not any(WORK in node.attrs for graph in graphs for node in graph.nodes):
        return PipelineFacts(count, stages, None)
    from mspc.output.stage_times import stage_times  # late, as above

    return PipelineFacts(count, stages, stage_times(graphs, stages[min(stages)].machine))


@dataclass(frozen=True)
class CompileFacts:
    """All facts of one compile, dump or plan, as they are read from its files.

    name: as the user named it. plan: its decisions. kinds: of ranks; empty for a plan. foreign: MindSpore wrote it.
    stages: of a folder, by number, the first kind of its ranks. module: content of a single file. program: of a folder.
    global_graph: of all ranks, with its layouts. configured, decided: the same before and after the pass that decides
    on layouts. Unknown facts are None.
    """

    name: str
    ranks: int | None
    mode: str
    plan: PlanEntries | None
    tensors: tuple[TensorFact, ...] = ()
    kinds: tuple[GraphFacts, ...] = ()
    foreign: bool = False
    notes: list[str] = field(default_factory=list[str])
    stages: Mapping[int, GraphFacts] = field(default_factory=dict[int, GraphFacts])
    module: Module | None = None
    program: Program | None = None
    global_graph: Graph | None = None
    configured: Graph | None = None
    decided: Graph | None = None

    @cached_property
    def pipeline(self) -> PipelineFacts | None:
        """The pipeline; None for a network in one stage, and if unknown."""
        return pipeline_of(self.stages)

    @property
    def compile_id(self) -> str:
        """Identity of the compile; "" if unknown."""
        if self.program is not None:
            return self.program.compile_id
        return "" if self.module is None else str(self.module.attrs.get("compile_id", ""))

    @property
    def machine(self) -> Machine:
        """Machine for which times are predicted."""
        return self.kinds[0].machine if self.kinds else H200

    @property
    def programs(self) -> list[Graph]:
        """The graph of every kind of ranks."""
        return [kind.graph for kind in self.kinds]

    @property
    def step(self) -> float | None:
        """Predicted seconds of a step, including the waits between stages; None if unknown."""
        if self.pipeline is not None and self.pipeline.step is not None:
            return self.pipeline.step
        return max((kind.times.step for kind in self.kinds if kind.times is not None), default=None)

    def idle(self, kind: GraphFacts) -> float | None:
        """Return the share of a step in which the stage of a kind of ranks does not work; None without stages."""
        return None if self.pipeline is None else self.pipeline.idle(stage_of(kind.graph))


@dataclass(frozen=True)
class Totals:
    """Sums for one rank and one step. peak_bytes: all memory of a planned step. runs: of operators, with repetitions in
    loops. bytes_a_turn: sent in one iteration of loops with a length known only at run time; not in `bytes_sent`."""

    operators: int
    collectives: int
    bytes_sent: int
    parameter_bytes: int
    peak_bytes: int
    runs: int = 0
    bytes_a_turn: int = 0


@dataclass
class Report:
    """The complete table. rank: that of the listed collectives and sizes. without_kernels: for a GPU. times: predicted
    for H200s, of a captured step."""

    compile_id: str
    mode: str
    ranks: int
    rank: int
    operators: list[OperatorRow]
    parameters: list[ParameterRow]
    collectives: list[CollectiveRow]
    slices: list[SliceRow]
    totals: Totals
    memory: MemoryRow
    without_kernels: list[KernellessRow] = field(default_factory=list["KernellessRow"])
    times: StepTimes | None = None
    notes: list[str] = field(default_factory=list[str])


def make_report(compiled: Compiled, graph: Graph, rank: int, timed: bool = False) -> Report:
    """Return the report of a compile; `graph` is the execute graph of `rank`. timed: whether to predict times."""
    config, on_gpu = compiled.config, compiled.config.device == "GPU"
    ran = list(nodes_with_times(graph))
    collectives = [collective_row(node, node.op, times) for node, times in ran if isinstance(node.op, Collective)]
    parameters = [parameter_row(parameter) for parameter in graph.parameters]
    facts = GraphFacts(graph, machine=H200, on_gpu=on_gpu)
    memory = memory_row(facts.memory_plan)
    return Report(
        compile_id=compiled.compile_id, mode=config.mode, ranks=config.all_ranks, rank=rank,
        operators=operator_rows(compiled.graph, config.sharded), parameters=parameters, collectives=collectives,
        slices=slice_rows(compiled.graph),
        totals=Totals(
            operators=len(ran), collectives=sum(c.runs for c in collectives),
            parameter_bytes=sum(row.bytes for row in parameters if row.kind != "input"),
            bytes_sent=sum(c.bytes for c in collectives if not c.a_turn), peak_bytes=memory.total,
            runs=sum(times.count for _, times in ran),
            bytes_a_turn=sum(c.bytes for c in collectives if c.a_turn),
        ),
        memory=memory,
        without_kernels=without_kernels(graph) if on_gpu else [],
        times=facts.times if timed else None,
    )  # fmt: skip
