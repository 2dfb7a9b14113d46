"""The schedule that the header of a graph asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mspc.ir.graph import STAGES
from mspc.passes.pipelining.placement import CHUNKS, SCHEDULER, is_interleaved, table_of
from mspc.passes.pipelining.schedule_check import require_schedule
from mspc.passes.pipelining.schedules.action import BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Schedule, actions_of
from mspc.passes.pipelining.schedules.named import THERE_AND_BACK, WITH_SPLIT_GRADIENTS, named_schedule


def kinds_of(kind: str, weights_apart: bool) -> tuple[str, ...]:
    """The graphs of a chunk that an action of a kind runs: both gradients in one go are two where they are apart."""
    return (INPUT_GRADIENT, WEIGHT_GRADIENT) if kind == BACKWARD and weights_apart else (kind,)


def has_weights_apart(attrs: Mapping[str, Any]) -> bool:
    """Whether gradients for weights run apart from those for inputs."""
    table = table_of(attrs)
    if table is None:
        return attrs.get(SCHEDULER) in WITH_SPLIT_GRADIENTS
    return any(part.kind == WEIGHT_GRADIENT for entries in table.schedule.entries for part in actions_of(entries))


def chosen_schedule(attrs: Mapping[str, Any], micro_batches: int) -> Schedule:
    """The schedule for the stages and chunks of a graph with this header; a table is proved first.

    Raises:
        MspcError: there is no such schedule, it is not for these numbers, or it does not run to its end.
    """
    table = table_of(attrs, micro_batches)
    if table is not None:
        require_schedule(table.schedule, table.lines)
        return table.schedule
    name, stages, interleave = str(attrs.get(SCHEDULER, "1f1b")), int(attrs.get(STAGES, 1)), is_interleaved(attrs)
    chunks = -(-int(attrs.get(CHUNKS, stages)) // stages)
    fixed = name in THERE_AND_BACK or not interleave
    return named_schedule(name, stages, micro_batches, None if fixed else max(chunks, 2), interleave=interleave)
