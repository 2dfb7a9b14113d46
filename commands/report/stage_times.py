"""The timeline of a pipeline: when every stage works on which micro-batch, by the predicted times of its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import seconds
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.graph import WORK, Graph, Node
from mspc.ops.collective.stage_messages import SendToStage
from mspc.output.schedule_svg import schedule_svg
from mspc.output.schedule_text import schedule_text
from mspc.passes.pipelining.chosen_schedule import chosen_schedule
from mspc.passes.pipelining.schedules.action import BACKWARD, INPUT_GRADIENT, KINDS, WEIGHT_GRADIENT
from mspc.passes.pipelining.stage_program import CHUNK, MICRO_BATCH
from mspc.passes.pipelining.timeline import Timeline, timeline

PICTURES = (".svg", ".txt")


def check_picture(path: Path) -> None:
    """Raises MspcError where a file is to be written in a form that there is not."""
    if path.suffix not in PICTURES:
        raise MspcError(f"--schedule {path}: its name ends in neither .svg nor .txt")


def work_of(node: Node) -> tuple[str, int, int]:
    """(kind, chunk, micro-batch) of a node that works on a micro-batch. Raises MspcError where it does not say so: a
    file that was changed by hand may hold anything."""
    kind, chunk, number = (node.attrs.get(key) for key in (WORK, CHUNK, MICRO_BATCH))
    if kind not in KINDS or not all(isinstance(n, int) and n >= 0 for n in (chunk, number)):
        told = f"{WORK}: {kind}, {CHUNK}: {chunk}, {MICRO_BATCH}: {number}"
        raise MspcError(f"{node.label}: no work on a micro-batch is {told}", frames=node.frames)
    return str(kind), int(str(chunk)), int(str(number))


def stage_times(graphs: Sequence[Graph], machine: Machine = H200) -> Timeline:
    """The timeline of a step. graphs: of one rank of every stage. Raises MspcError where there are no micro-batches."""
    durations: dict[tuple[int, str], float] = {}
    messages = [0.0]
    micro_batches = 0
    for node in (node for graph in graphs for node in graph.nodes):
        if isinstance(node.op, SendToStage) and node.op.micro_batch == 0:
            messages.append(seconds(node, machine))
        if WORK in node.attrs:
            kind, chunk, number = work_of(node)
            micro_batches = max(micro_batches, number + 1)
            if number == 0:
                durations[chunk, kind] = seconds(node, machine)
    if not micro_batches:
        raise MspcError(
            "the program has no stages that work on micro-batches, and so no schedule",
            notes=["set pipeline_stages, and put the network into a PipelineCell"],
        )
    if micro_batches > sum(WORK in node.attrs for graph in graphs for node in graph.nodes):
        raise MspcError(f"the program works on micro-batch {micro_batches - 1}, and not on all of those before it")
    schedule = chosen_schedule(graphs[0].attrs, micro_batches)
    every = {(chunk, kind): durations.get((chunk, kind), 0.0) for chunk in range(schedule.chunks) for kind in KINDS}
    for chunk in range(schedule.chunks):
        every[chunk, BACKWARD] = every[chunk, BACKWARD] or every[chunk, INPUT_GRADIENT] + every[chunk, WEIGHT_GRADIENT]
    return timeline(schedule, every, max(messages))


def write_picture(compiled: Compiled, path: Path) -> None:
    """Write the timeline in the form that the file's name asks for. Raises MspcError as `stage_times` does, and where
    the file cannot be written."""
    config = compiled.config
    times = stage_times([compiled.rank_graph(stage * config.ranks) for stage in range(config.pipeline_stages)])
    text = schedule_svg(times) if path.suffix == ".svg" else schedule_text(times)
    write_atomically(path, lambda file: file.write(text.encode()))
