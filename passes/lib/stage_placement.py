"""The stage of every chunk, and the schedule and the micro-batches of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, STAGES, Graph, Node, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import Scan
from mspc.ops.control.structural import Depend
from mspc.passes.lib.schedule_tables import ScheduleTable, read_table
from mspc.passes.lib.schedules import (
    BACKWARD,
    INPUT_GRADIENT,
    THERE_AND_BACK,
    WEIGHT_GRADIENT,
    WITH_SPLIT_GRADIENTS,
    Schedule,
    named_schedule,
)
from mspc.passes.lib.timeline import require_schedule

# A stage has one chunk, or, with interleaving, several: in rounds (chunk k on stage k modulo p), or there and back
# (stage i has chunks i and 2 p - 1 - i), as in the schedules with a V.


SCHEDULER, TABLE = "pipeline_scheduler", "pipeline_table"
"""Attributes of the graph: the name of the schedule, "1f1b" without it, or of the file of a table; that table."""
CHUNKS = "pipeline_chunks"
"""Attribute of the graph: how many chunks there are, if they are more than stages."""
GIVEN_CHUNKS = "stages_are_chunks"
"""Attribute of the graph: cells were given numbers of chunks instead of stages, as plans do."""
ONCE, ROUNDS, V_SHAPED = "once", "rounds", "v"


@dataclass(frozen=True)
class StagePlacement:
    """The stages of chunks. stages: how many. shape: ONCE, ROUNDS or V_SHAPED. numbered: cells were given numbers of
    chunks instead of stages."""

    stages: int
    shape: str = ONCE
    numbered: bool = False

    def stage(self, chunk: int) -> int:
        """Return the stage that has a chunk."""
        if self.shape == V_SHAPED and chunk >= self.stages:
            return 2 * self.stages - 1 - chunk
        return chunk % self.stages

    def has(self, given: int) -> bool:
        """Return whether a number is one that a cell may have been given."""
        return 0 <= given < self.stages or self.numbered

    def chunk(self, stage: int, behind: int) -> int | None:
        """Return the first chunk of a stage that is not before chunk `after`, or None."""
        if self.shape == ONCE or self.numbered:
            return stage if stage >= behind else None
        if self.shape == ROUNDS:
            return behind + (stage - behind) % self.stages
        return next((each for each in (stage, 2 * self.stages - 1 - stage) if each >= behind), None)


def is_interleaved(attrs: Mapping[str, Any]) -> bool:
    """Return whether the header of a graph asks for several chunks on a stage, in rounds."""
    return bool(attrs.get("pipeline_interleave")) or int(attrs.get("pipeline_segments", 1)) > 1


def placement_of(attrs: Mapping[str, Any]) -> StagePlacement:
    """Return the placement that the header of a graph asks for."""
    stages = int(attrs.get(STAGES, 1))
    table = table_of(attrs)
    if table is not None:
        return _placement_of_table(table, stages)
    numbered = bool(attrs.get(GIVEN_CHUNKS))
    if attrs.get(SCHEDULER) in THERE_AND_BACK:
        return StagePlacement(stages, V_SHAPED, numbered)
    return StagePlacement(stages, ROUNDS if is_interleaved(attrs) else ONCE, numbered)


def computed_by(attrs: Mapping[str, Any], stage: int) -> Callable[[Node], bool]:
    """Return whether a stage computes a node of the loop over micro-batches, for the header of its graph; any stage for
    -1."""
    placement = placement_of(attrs) if stage >= 0 else None
    return lambda node: placement is None or STAGE not in node.attrs or placement.stage(int(node.attrs[STAGE])) == stage


def table_of(attrs: Mapping[str, Any], micro_batches: int | None = None) -> ScheduleTable | None:
    """Return the table of a graph whose schedule is one. Raise MspcError if it cannot be read."""
    return read_table(attrs[TABLE], str(attrs[SCHEDULER]), micro_batches) if TABLE in attrs else None


def _placement_of_table(table: ScheduleTable, stages: int) -> StagePlacement:
    """Raise MspcError if the table is for another number of stages, or places its chunks as no network is placed."""
    schedule = table.schedule
    if schedule.stages != stages:
        last = min(schedule.stages, stages + 1) - 1
        place = table.lines[last][0]
        if last < stages:
            message = f"this is the last line, of stage {last}, and pipeline_stages is {stages}"
        else:
            message = f"this line is of stage {last}, and pipeline_stages is {stages}"
        raise MspcError(message, place, ["a table has a line for every stage"], kind=ValueError)
    for shape in (ONCE, ROUNDS, V_SHAPED):
        found = StagePlacement(stages, shape)
        fits = len(schedule.placement) == (stages if shape == ONCE else len(schedule.placement))
        if fits and schedule.placement == tuple(map(found.stage, range(schedule.chunks))):
            return found
    raise MspcError(
        f"the schedule {schedule.name} has chunks on stages {', '.join(map(str, schedule.placement))}",
        notes=["chunks are on stages in rounds (0, 1, 0, 1), or there and back (0, 1, 1, 0)"], kind=ValueError,
    )  # fmt: skip


def kinds_of(kind: str, weights_apart: bool) -> tuple[str, ...]:
    """Return the graphs of a chunk that an action of a kind runs: both gradients in one go are two if they are
    apart."""
    return (INPUT_GRADIENT, WEIGHT_GRADIENT) if kind == BACKWARD and weights_apart else (kind,)


def has_weights_apart(attrs: Mapping[str, Any]) -> bool:
    """Return whether gradients for weights run apart from those for inputs."""
    table = table_of(attrs)
    if table is None:
        return attrs.get(SCHEDULER) in WITH_SPLIT_GRADIENTS
    return any(action.kind == WEIGHT_GRADIENT for entries in table.schedule.entries for action in entries)


def chosen_schedule(attrs: Mapping[str, Any], micro_batches: int) -> Schedule:
    """Return the schedule for the stages and chunks of a graph with this header; a table is proved first. Raise
    MspcError if there is no such schedule, it is not for these numbers, or it does not run to its end."""
    table = table_of(attrs, micro_batches)
    if table is not None:
        require_schedule(table.schedule, table.lines)
        return table.schedule
    name, stages, interleave = str(attrs.get(SCHEDULER, "1f1b")), int(attrs.get(STAGES, 1)), is_interleaved(attrs)
    chunks = -(-int(attrs.get(CHUNKS, stages)) // stages)
    fixed = name in THERE_AND_BACK or not interleave
    return named_schedule(name, stages, micro_batches, None if fixed else max(chunks, 2), interleave=interleave)


_SUMS = "accu_grads."
"""How MindSpore names parameters to which it adds the gradients of micro-batches after a script's back."""


def check_sums(graph: Graph) -> None:
    """Raise MspcError if something reads a parameter to which MindSpore would add gradients."""
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if isinstance(value, Parameter) and value.name.startswith(_SUMS) and not isinstance(node.op, Depend):
                if index not in node.op.mutates:
                    raise node.error(
                        f"{node.label} reads {value.name!r}, to which nothing adds gradients here",
                        ["the gradients of a PipelineCell are sums over its micro-batches: use them themselves"],
                        RuntimeError,
                    )


def micro_batch_loop(graph: Graph) -> Node | None:
    """Return the loop over micro-batches. Raise MspcError if there are several."""
    found = [node for node in graph.nodes if isinstance(node.op, Scan) and node.op.micro_batches]
    if len(found) > 1:
        raise found[1].error(
            "a program with several stages has one loop over micro-batches, and this is the second",
            ["call one PipelineCell in a step"],
        )
    return found[0] if found else None
