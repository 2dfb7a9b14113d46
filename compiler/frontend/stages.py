"""Operators note the stages of the cells that call them."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.api.nn.cell import Cell
from mspc.compiler.frontend.state import Tracer
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, Node


def note_stage(tracer: Tracer, cell: Cell, nodes: Iterable[Node]) -> None:
    """Give the operators of a cell its stage, but for those of cells in it that have their own.

    Raises:
        MspcError: there is no such stage.
    """
    stage = cell.pipeline_stage
    assert stage is not None
    if stage >= tracer.stages:
        raise MspcError(
            f"{type(cell).__name__} is of stage {stage}, and there are stages 0 to {tracer.stages - 1}",
            cell.pipeline_stage_place, [f"pipeline_stages is {tracer.stages}"], kind=ValueError,
        )  # fmt: skip
    for node in nodes:
        node.attrs.setdefault(STAGE, stage)
