"""What the programs of a compile's stages say of their pipeline: the schedule, idle times, messages between stages."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.analysis.cost.machine import Machine
from mspc.commands.facts.model import PipelineFacts, RankFacts, StageFacts
from mspc.ir.graph import STAGES, WORK, Graph
from mspc.ops.collective.point_to_point import SendToStage


def pipeline_facts(
    graphs: Mapping[int, Graph], ranks: Mapping[int, RankFacts], machine: Machine
) -> PipelineFacts | None:
    """The facts of a pipeline; None of one stage.

    graphs, ranks: by a stage's number the program of the first kind of its ranks, and the facts of that kind.
    """
    count = max((int(graph.attrs.get(STAGES, 1)) for graph in graphs.values()), default=1)
    if count < 2:
        return None
    works = any(WORK in node.attrs for graph in graphs.values() for node in graph.nodes)
    borders: dict[tuple[int, int], tuple[int, int]] = {}
    for stage, graph in sorted(graphs.items()):
        for node in graph.nodes:
            if isinstance(node.op, SendToStage):
                messages, nbytes = borders.get((stage, node.op.stage), (0, 0))
                borders[stage, node.op.stage] = messages + 1, nbytes + node.type.nbytes
    if not works or len(graphs) < count:
        found = {stage: StageFacts(None, None, ranks[stage].operators) for stage in graphs}
        return PipelineFacts(count, "", 0, 0, None, found, borders)
    from mspc.output.stage_times import stage_times  # late: few programs have stages

    times = stage_times([graphs[stage] for stage in sorted(graphs)], machine)
    found = {
        stage: StageFacts(times.idle_share(stage), times.kept(stage), ranks[stage].operators) for stage in graphs
    }
    schedule = times.schedule
    return PipelineFacts(
        count, schedule.name, schedule.micro_batches, schedule.chunks, times.makespan, found, borders
    )
