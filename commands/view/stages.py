"""The page shows when the stages of a pipeline work on which micro-batch, for what they wait, and who hands on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.analysis.cost.machine import Machine
from mspc.commands.view.memory import sizes_of
from mspc.commands.view.schedule import rounded
from mspc.commands.view.tables import NodeTables
from mspc.ir.graph import STAGE, STAGES, WORK, Graph, Node
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.passes.lib.timeline import StepTail
from mspc.runtime.memory_plan import plan_memory


def stage_facts(
    programs: Sequence[Graph], stages: Mapping[int, Graph], machine: Machine, tables: NodeTables
) -> dict[str, Any] | None:
    """What is told of stages; None where the programs have none.

    `of` is the stage of every program. Where there is a program of every stage, and they work on micro-batches,
    `heading` sums the schedule up, `total` are the seconds of a step, and `rows` are of every stage: the number of its
    `program`, -1 where the page has none of it; which part of a step it is `idle`; how many micro-batches it `keeps`;
    the `sizes` of what its ranks hold; `spans`, its work in order; and `tail`, its updates and what else is of no
    micro-batch, as [begin, end, what it has waited for, what it is], null where it has none. A span is [begin, end,
    blocks, what it has waited for (-1: it has not)], a block [kind, chunk, micro-batch, node].

    Args:
        programs: those that the page has. stages: the first program of every stage.
    """
    count = max((int(graph.attrs.get(STAGES, 1)) for graph in stages.values()), default=1)
    if count < 2:
        return None
    found: dict[str, Any] = {"count": count, "of": [int(graph.attrs.get(STAGE, 0)) for graph in programs]}
    works = any(WORK in node.attrs for graph in stages.values() for node in graph.nodes)
    return found | (_schedule(programs, stages, machine, tables) if works and len(stages) == count else {})


def _schedule(
    programs: Sequence[Graph], stages: Mapping[int, Graph], machine: Machine, tables: NodeTables
) -> dict[str, Any]:  # fmt: skip
    """The timeline."""
    from mspc.output.schedule_words import heading, wait_text  # late: few programs have stages
    from mspc.output.stage_times import stage_times
    from mspc.passes.lib.schedules import parts_of
    from mspc.passes.lib.stage_placement import has_weights_apart, kinds_of

    numbers = {id(graph): number for number, graph in enumerate(programs)}
    timeline = stage_times([stages[stage] for stage in sorted(stages)], machine)
    rows: list[dict[str, Any]] = []
    for stage, graph in sorted(stages.items()):
        calls, apart = _calls(graph), has_weights_apart(graph.attrs)
        spans: list[list[Any]] = []
        begin = 0.0
        for span in timeline.spans[stage]:
            blocks = [
                [part.kind, part.chunk, part.micro_batch, _call(calls, kinds_of(part.kind, apart), part)]
                for part in parts_of(span.entry)
            ]
            waited = tables.string(wait_text(span, begin)) if span.awaited is not None else -1
            spans.append([rounded(span.start), rounded(span.end), blocks, waited])
            begin = span.end
        idle = rounded(timeline.idle_share(stage))
        row = {"program": numbers.get(id(graph), -1), "idle": idle, "keeps": timeline.kept(stage)}
        row["tail"] = _tail(timeline.tails.get(stage), begin, tables)
        rows.append(row | {"sizes": sizes_of(plan_memory(graph)), "spans": spans})
    return {"heading": heading(timeline), "total": rounded(timeline.makespan), "rows": rows}


def _tail(tail: StepTail | None, begin: float, tables: NodeTables) -> list[Any] | None:
    """What follows the last action of a stage, which ends at `begin`."""
    from mspc.output.schedule_words import tail_text, tail_wait_text  # late, as above

    if tail is None:
        return None
    waited = tables.string(tail_wait_text(tail, begin)) if tail.start > begin else -1
    return [rounded(tail.start), rounded(tail.end), waited, tables.string(tail_text(tail))]


def _calls(graph: Graph) -> dict[tuple[str, int, int], int]:
    """The nodes that work on micro-batches, by kind of work, chunk and micro-batch."""
    from mspc.passes.lib.stage_programs import work_of  # late, as above

    return {work_of(node): index for index, node in enumerate(graph.nodes) if WORK in node.attrs}


def _call(calls: dict[tuple[str, int, int], int], kinds: Sequence[str], part: Any) -> int:
    """The first node that an action runs; -1 where nothing is left of it."""
    return next((calls[key] for kind in kinds if (key := (kind, part.chunk, part.micro_batch)) in calls), -1)


def message_facts(node: Node, rank: int) -> dict[str, Any]:
    """Of a message between stages: whether it is `received` or sent by `rank`, the `stage` of the other side, by how
    many ranks that is `away`, its `bytes`, the `tag` by which both sides know it, and its `micro_batch` (-1: none).
    Nothing of other nodes."""
    op = node.op
    if not isinstance(op, SendToStage | ReceiveFromStage):
        return {}
    received = isinstance(op, ReceiveFromStage)
    away = -op.distance if received else op.distance
    told = {"rank": rank, "stage": op.stage, "away": away, "tag": op.sr_tag, "micro_batch": op.micro_batch}
    return {"message": told | {"received": received, "bytes": node.type.nbytes}}
