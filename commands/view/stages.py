"""Stages of a pipeline in the form of the page: the times of their micro-batches, their waits and their messages."""

from __future__ import annotations

from typing import Any

from mspc.analysis.cost.machine import PRODUCTS, Machine
from mspc.analysis.cost.nodes import moved_bytes, work_of
from mspc.commands.facts.compiled import CompileFacts, stage_of
from mspc.commands.facts.graph import GraphFacts
from mspc.commands.facts.memory import memory_sizes
from mspc.commands.view.page_tables import NodeTables
from mspc.ir.graph import WORK, Graph, Node
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.passes.lib.timeline import ScheduleTimeline, StepTail


def stage_facts(facts: CompileFacts, tables: NodeTables) -> dict[str, Any] | None:
    """Return the facts of the stages for the page; None if the programs have no stages.

    `of` is the stage of every program. If there is a program of every stage, and they work on micro-batches, `heading`
    summarizes the schedule, `total` is the duration of a step in seconds, and `rows` has one entry for every stage: the
    number of its `program`, -1 if the page does not contain it; `idle`, its idle share of a step; `keeps`, the most
    micro-batches for which it holds values; `sizes`, the memory of its ranks; `spans`, its work in order; and `tail`,
    its updates and other work outside micro-batches, as [begin, end, number of the text of its wait (-1: none), number
    of its own text], null if it has none. A span is [begin, end, blocks, number of the text of its wait (-1: none)], a
    block [kind, chunk, micro-batch, node].
    """
    pipeline = facts.pipeline
    if pipeline is None:
        return None
    found: dict[str, Any] = {"count": pipeline.count, "of": [stage_of(graph) for graph in facts.programs]}
    timeline = pipeline.timeline
    if timeline is None:
        return found
    from mspc.output.schedule_text import heading  # late: few programs have stages

    numbers = {kind.ranks: number for number, kind in enumerate(facts.kinds)}
    rows = [
        {
            "program": numbers.get(kind.ranks, -1), "idle": rounded(timeline.idle_share(stage)),
            "keeps": timeline.kept(stage), "sizes": memory_sizes(kind.memory_plan),
            **_work(kind.graph, timeline, stage, tables),
        }
        for stage, kind in sorted(pipeline.stages.items())
    ]  # fmt: skip
    return found | {"heading": heading(timeline), "total": rounded(timeline.makespan), "rows": rows}


def _work(graph: Graph, timeline: ScheduleTimeline, stage: int, tables: NodeTables) -> dict[str, Any]:
    """Return the `spans` and the `tail` of a stage, in the form described in `stage_facts`."""
    from mspc.output.schedule_text import wait_text  # late, as above
    from mspc.passes.lib.stage_placement import has_weights_apart, kinds_of
    from mspc.passes.lib.stage_programs import work_of as scheduled_work

    calls = {scheduled_work(node): index for index, node in enumerate(graph.nodes) if WORK in node.attrs}
    apart = has_weights_apart(graph.attrs)
    spans: list[list[Any]] = []
    begin = 0.0
    for span in timeline.spans[stage]:
        part = span.action
        keys = [(kind, part.chunk, part.micro_batch) for kind in kinds_of(part.kind, apart)]
        call = next((calls[key] for key in keys if key in calls), -1)
        blocks = [[part.kind, part.chunk, part.micro_batch, call]]
        waited = tables.string(wait_text(span, begin)) if span.awaited is not None else -1
        spans.append([rounded(span.start), rounded(span.end), blocks, waited])
        begin = span.end
    return {"tail": _tail(timeline.tails.get(stage), begin, tables), "spans": spans}


def _tail(tail: StepTail | None, begin: float, tables: NodeTables) -> list[Any] | None:
    """Return the work after the last action of a stage, which ends at `begin`; None if there is none."""
    from mspc.output.schedule_text import tail_text, tail_wait_text  # late, as above

    if tail is None:
        return None
    waited = tables.string(tail_wait_text(tail, begin)) if tail.start > begin else -1
    return [rounded(tail.start), rounded(tail.end), waited, tables.string(tail_text(tail))]


def message_facts(node: Node, rank: int) -> dict[str, Any]:
    """Return the facts of a message between stages; {} for other nodes.

    `received` is False if `rank` sends it, `stage` is that of the other side, `away` is the distance to it in ranks,
    `tag` identifies the message on both sides, `micro_batch` is -1 if it belongs to none.
    """
    op = node.op
    if not isinstance(op, SendToStage | ReceiveFromStage):
        return {}
    received = isinstance(op, ReceiveFromStage)
    away = -op.distance if received else op.distance
    told = {"rank": rank, "stage": op.stage, "away": away, "tag": op.sr_tag, "micro_batch": op.micro_batch}
    return {"message": told | {"received": received, "bytes": node.type.nbytes}}


LARGE = 1e12
"""Bytes, or floating-point operations, at which the rates of the roofline are evaluated."""
DIGITS = 5
"""Significant digits of times in the page."""


def rounded(number: float) -> float:
    """Return a number rounded to the digits in the page."""
    return float(f"{number:.{DIGITS}g}")


def schedule(facts: GraphFacts) -> dict[str, Any]:
    """Return the predicted step: `begin` and `seconds` of every node (None for views, which do not run), its
    `operations`, the bytes `moved` by its reads and writes, and sums of the step in seconds."""
    timeline, nodes = facts.timeline, facts.graph.nodes
    spans = [timeline.spans.get(node) for node in nodes]
    return {
        "begin": [None if span is None else rounded(span[0]) for span in spans],
        "seconds": [None if span is None else rounded(span[1]) for span in spans],
        "operations": [work_of(node) for node in nodes],
        "moved": [moved_bytes(node) for node in nodes],
        "total": timeline.total,
        "compute": timeline.compute,
        "communication": timeline.communication,
        "hidden": timeline.hidden,
    }


def machine_facts(machine: Machine) -> dict[str, Any]:
    """Return the facts of the machine for which times are predicted. `rates` are those of matmuls by dtype, in
    operations per second; memory, link and network are in bytes per second."""
    return {
        "name": machine.name,
        "source": " ".join(machine.source.split()),
        "memory": machine.memory.at(LARGE),
        "rates": {name: rate.at(LARGE) for name, rate in machine.work.get(PRODUCTS, {}).items()},
        "other": machine.other_products.at(LARGE),
        "link": machine.link.bandwidth.at(LARGE),
        "network": machine.network and machine.network.bandwidth.at(LARGE),
        "ranks_per_host": machine.ranks_per_host,
    }
