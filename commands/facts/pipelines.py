"""Facts of a network in several stages: the schedule of their work, their waits and their messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from mspc.commands.facts.graph import GraphFacts
from mspc.ir.graph import STAGE, STAGES, WORK, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.point_to_point import SendToStage

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
    from mspc.output.stage_times import stage_times  # late: few programs have stages

    return PipelineFacts(count, stages, stage_times(graphs, stages[min(stages)].machine))
