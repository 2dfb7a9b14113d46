"""Stages of a pipeline in the form of the page: the times of their micro-batches, their waits and their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.analysis.aliasing import last_reads, viewed_operands
from mspc.analysis.cost.machine import PRODUCTS, Machine
from mspc.analysis.cost.nodes import moved_bytes, work_of
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.commands.view.page_tables import NodeTables
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, STAGES, WORK, Graph, Node, Value, element_types
from mspc.ops.check_graph import check_graph
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.control.structural import extracted_elements
from mspc.ops.op import Op
from mspc.passes.lib.timeline import StepTail
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_classes import CLASSES
from mspc.runtime.memory_plan import plan_memory


def stage_facts(
    programs: Sequence[Graph], stages: Mapping[int, Graph], machine: Machine, tables: NodeTables
) -> dict[str, Any] | None:
    """Return the facts of the stages for the page; None if the programs have no stages.

    `of` is the stage of every program. If there is a program of every stage, and they work on micro-batches, `heading`
    summarizes the schedule, `total` is the duration of a step in seconds, and `rows` has one entry for every stage: the
    number of its `program`, -1 if the page does not contain it; `idle`, its idle share of a step; `keeps`, the most
    micro-batches for which it holds values; `sizes`, the memory of its ranks; `spans`, its work in order; and `tail`,
    its updates and other work outside micro-batches, as [begin, end, number of the text of its wait (-1: none), number
    of its own text], null if it has none. A span is [begin, end, blocks, number of the text of its wait (-1: none)], a
    block [kind, chunk, micro-batch, node]. programs: those in the page. stages: the first program of every stage.
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
    """Return the timeline of the stages, in the form described in `stage_facts`."""
    from mspc.output.schedule_text import heading, wait_text  # late: few programs have stages
    from mspc.output.stage_times import stage_times
    from mspc.passes.lib.stage_placement import has_weights_apart, kinds_of
    from mspc.passes.lib.stage_programs import work_of as scheduled_work

    numbers = {id(graph): number for number, graph in enumerate(programs)}
    timeline = stage_times([stages[stage] for stage in sorted(stages)], machine)
    rows: list[dict[str, Any]] = []
    for stage, graph in sorted(stages.items()):
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
        idle = rounded(timeline.idle_share(stage))
        row = {"program": numbers.get(id(graph), -1), "idle": idle, "keeps": timeline.kept(stage)}
        row["tail"] = _tail(timeline.tails.get(stage), begin, tables)
        rows.append(row | {"sizes": sizes_of(plan_memory(graph)), "spans": spans})
    return {"heading": heading(timeline), "total": rounded(timeline.makespan), "rows": rows}


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


def schedule(graph: Graph, machine: Machine) -> dict[str, Any]:
    """Return the predicted step: `begin` and `seconds` of every node (None for views, which do not run), its
    `operations`, the bytes `moved` by its reads and writes, and sums of the step in seconds."""
    timeline = StreamTimeline(graph, machine)
    spans = [timeline.spans.get(node) for node in graph.nodes]
    return {
        "begin": [None if span is None else rounded(span[0]) for span in spans],
        "seconds": [None if span is None else rounded(span[1]) for span in spans],
        "operations": [work_of(node) for node in graph.nodes],
        "moved": [moved_bytes(node) for node in graph.nodes],
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


def memory_facts(graph: Graph) -> dict[str, Any]:
    """Return the memory of a step.

    `sizes` are the bytes of permanent storage and of the arena. `blocks` has a row for every block of the arena:
    offset, bytes, the first and the last node for which it is held, and the nodes with results in it. `kinds` has the
    index of each block's class in `classes`.
    """
    plan = plan_memory(graph)
    last = _last_reads(graph)
    found: dict[tuple[int, int], list[list[Any]]] = {}
    for index, node in enumerate(graph.nodes):
        if node.op.is_view and node not in plan.copied:
            continue
        for number, (place, name) in enumerate(zip(plan.places[node], plan.classes[node], strict=True)):
            until = max(last.get((node, number), index), index)
            if place.kind != "arena" or not place.nbytes:
                continue
            if node in plan.shadow_weights.copies:  # it persists between steps
                found[place.offset, place.nbytes] = [[0, len(graph.nodes), [index], CLASSES.index(name)]]
            else:
                _extend(found.setdefault((place.offset, place.nbytes), []), index, until, CLASSES.index(name))
    blocks = sorted(([*key, *rest] for key, rows in found.items() for rest in rows), key=lambda row: (row[2], row[0]))
    return {
        "sizes": sizes_of(plan),
        "classes": CLASSES,
        "blocks": [row[:-1] for row in blocks],
        "kinds": [row[-1] for row in blocks],
    }  # fmt: skip


def sizes_of(plan: MemoryPlan) -> dict[str, int]:
    """Return the bytes of permanent storage, of the arena, of the classes in it, and of values on the host."""
    return {
        "weights": plan.weights, "states": plan.states, "inputs": plan.inputs, "constants": plan.constants,
        "arena": plan.arena, "gradients": plan.gradients, "activations": plan.activations,
        "temporary": plan.temporary, "lower_bound": plan.lower_bound, "peak": plan.peak,
        "on_host": plan.on_host,
    }  # fmt: skip


def _last_reads(graph: Graph) -> dict[tuple[Value, int], int]:
    """Return the position of the last node that reads each tensor, by (value, index of the tensor in it)."""
    last_of = last_reads(graph, viewed_operands)
    found: dict[tuple[Value, int], int] = {}
    for index, node in enumerate(graph.nodes):
        until = last_of.get(node, index) if node.op.is_view else index
        for operand in node.inputs:
            taken = extracted_elements(node.op)
            own = range(len(element_types(operand.type))) if taken is None else taken
            found.update({(operand, k): max(until, found.get((operand, k), 0)) for k in own})
    for value in graph.results:
        found.update({(value, k): len(graph.nodes) for k in range(len(element_types(value.type)))})
    return found


def _extend(rows: list[list[Any]], index: int, until: int, number: int) -> None:
    """Add a result to the rows of a block: to the last row if that is still alive and has the same class, else as a new
    row."""
    if rows and rows[-1][1] >= index and rows[-1][3] == number:
        rows[-1][1] = max(rows[-1][1], until)
        rows[-1][2].append(index)
        return
    if rows and rows[-1][1] >= index:
        rows[-1][1] = index - 1  # overwritten
    rows.append([index, until, [index], number])


def is_planned(graph: Graph) -> bool:
    """Return whether the memory of a graph can be planned: it is a rank's graph, consistent, with known operators."""
    if "rank" not in graph.attrs or not all(isinstance(node.op, Op) for node in graph.nodes):
        return False
    try:
        check_graph(graph)
    except MspcError:
        return False
    return True
