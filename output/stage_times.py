"""The timeline of a pipeline: when every stage works on which micro-batch, by the predicted times of its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import seconds
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import WORK, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.stage_messages import SendToStage
from mspc.passes.pipelining.chosen_schedule import chosen_schedule
from mspc.passes.pipelining.schedules.action import BACKWARD, INPUT_GRADIENT, KINDS, WEIGHT_GRADIENT
from mspc.passes.pipelining.stage_program import CHUNK, MICRO_BATCH
from mspc.passes.pipelining.timeline import Timeline, timeline


@dataclass(frozen=True)
class WorkTimes:
    """Seconds of what a rank of one stage does for a micro-batch, by chunk and kind. message: of its longest message.
    micro_batches: how many it works on."""

    durations: Mapping[tuple[int, str], float]
    message: float
    micro_batches: int


def work_times(graph: Graph, machine: Machine = H200) -> WorkTimes:
    """The times of a stage's work. graph: of one of its ranks."""
    durations: dict[tuple[int, str], float] = {}
    message = 0.0
    micro_batches = 0
    for node in graph.nodes:
        if isinstance(node.op, SendToStage) and node.op.micro_batch == 0:
            message = max(message, seconds(node, machine))
        if WORK in node.attrs:
            micro_batches = max(micro_batches, node.attrs[MICRO_BATCH] + 1)
            if node.attrs[MICRO_BATCH] == 0:
                durations[node.attrs[CHUNK], node.attrs[WORK]] = seconds(node, machine)
    return WorkTimes(durations, message, micro_batches)


def stage_times(graphs: Sequence[Graph], machine: Machine = H200) -> Timeline:
    """The timeline of a step. graphs: of one rank of every stage. Raises MspcError where there are no micro-batches."""
    return timeline_of(graphs[0].attrs, [work_times(graph, machine) for graph in graphs])


def timeline_of(attrs: Mapping[str, Any], times: Sequence[WorkTimes]) -> Timeline:
    """The timeline of a program with this header. times: of every stage. Raises MspcError as `stage_times` does."""
    durations = {key: time for stage in times for key, time in stage.durations.items()}
    micro_batches = max(stage.micro_batches for stage in times)
    if not micro_batches:
        raise MspcError(
            "the program has no stages that work on micro-batches, and so no schedule",
            notes=["set pipeline_stages, and put the network into a PipelineCell"],
        )
    schedule = chosen_schedule(attrs, micro_batches)
    every = {(chunk, kind): durations.get((chunk, kind), 0.0) for chunk in range(schedule.chunks) for kind in KINDS}
    for chunk in range(schedule.chunks):
        every[chunk, BACKWARD] = every[chunk, BACKWARD] or every[chunk, INPUT_GRADIENT] + every[chunk, WEIGHT_GRADIENT]
    return timeline(schedule, every, max(stage.message for stage in times))
