"""Operators note the stages of the cells that call them: those of the script, or of a plan, which goes before it."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.api.nn.cell import Cell
from mspc.compiler.frontend.state import Tracer
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, Node


def scope_of(tracer: Tracer, scope: str, cell: Cell) -> str:
    """The scope of a cell that is called in another one."""
    label = tracer.cell_names.get(id(cell), "")
    return f"{scope}/{f'{label}-' if label else ''}{type(cell).__name__}"


def stage_of(tracer: Tracer, scope: str, cell: Cell) -> int | None:
    """The stage of a cell that is called in `scope`; by a plan its chunk. None where nobody has given it one."""
    if tracer.planned.plan is None:
        return cell.pipeline_stage
    return tracer.planned.chunk_of(scope_of(tracer, scope, cell))


def note_stage(tracer: Tracer, cell: Cell, stage: int, nodes: Iterable[Node]) -> None:
    """Give the operators of a cell its stage, but for those of cells in it that have their own.

    Raises:
        MspcError: there is no such stage.
    """
    if stage >= tracer.stages and tracer.planned.plan is None:
        raise MspcError(
            f"{type(cell).__name__} is of stage {stage}, and there are stages 0 to {tracer.stages - 1}",
            cell.pipeline_stage_place, [f"pipeline_stages is {tracer.stages}"], kind=ValueError,
        )  # fmt: skip
    for node in nodes:
        node.attrs.setdefault(STAGE, stage)
