"""Puts the network of a training step into a PipelineCell, as the script would have to for stages."""

from __future__ import annotations

from typing import Any

from mspc.api.nn.cell import Cell
from mspc.api.nn.wrap import GradAccumulationCell, PipelineCell, TrainOneStepCell
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError


def cuts_batch(captured: CapturedCall) -> bool:
    """Whether a launched cell has one in it that cuts micro-batches."""
    target = captured.target
    cells = [cell for _, cell in target.cells_and_names()] if isinstance(target, Cell) else []
    return any(isinstance(cell, GradAccumulationCell) and cell.in_parts.cuts_batch for cell in cells)


def wrap_network(captured: CapturedCall) -> None:
    """Let the training step that was launched take its loss from a PipelineCell. Raises MspcError where none was."""
    target: Any = captured.target
    while isinstance(target, Cell) and hasattr(target, "parallel_settings"):
        target = target.network
    if not isinstance(target, TrainOneStepCell):
        raise MspcError(
            "the script trains in no micro-batches, and what it launches is no training step that could be looked at "
            "as if it did",
            notes=["wrap the network: PipelineCell(network, micro_size)"], kind=RuntimeError,
        )  # fmt: skip
    target.network = PipelineCell(target.network, 1)
