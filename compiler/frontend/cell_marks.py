"""Notes on operators what the cell that they are in asks for: to be recomputed, to be kept on the host, a stage of a
pipeline."""

from __future__ import annotations

from typing import Any

from mspc.api.nn.cell import Cell
from mspc.compiler.frontend.stages import note_stage, scope_of, stage_of
from mspc.compiler.frontend.state import Tracer
from mspc.ir.graph import OFFLOAD, OFFLOAD_INSIDE


def mark(tracer: Tracer, cell: Cell, first: int) -> None:
    """Mark what a cell has emitted, the nodes from number `first` on; what cells inside of it have said holds."""
    flags, asked = cell.get_flags(), dict[str, Any]()
    if flags.get("recompute"):
        asked["recompute"] = f"{tracer.builder.scope}, call {first}"
        options = flags.get("recompute_options") or {}
        if not options.get("mp_comm_recompute", True):
            asked["keeps_communication"] = True
        if options.get("parallel_optimizer_comm_recompute"):
            asked["gathers_again"] = True
    if flags.get("strategy_gen_mode"):
        asked["strategy_gen_mode"] = flags["strategy_gen_mode"]
    if flags.get(OFFLOAD) or flags.get(OFFLOAD_INSIDE):
        own = f", {flags.get(OFFLOAD_INSIDE)}"
        if flags.get(OFFLOAD):
            own = f"{scope_of(tracer, tracer.builder.scope, cell)}, {flags[OFFLOAD]}"
        for made in tracer.builder.nodes[first:]:
            if made.phase == "forward" and str(made.attrs.get(OFFLOAD, ", ")).startswith(", "):
                made.attrs[OFFLOAD] = own
    stage = stage_of(tracer, tracer.builder.scope, cell) if tracer.stages > 1 else None
    if stage is not None:
        note_stage(tracer, cell, stage, tracer.builder.nodes[first:])
    for made in tracer.builder.nodes[first:] if asked else ():
        if made.phase == "forward":
            decided = {"recompute": False} if made.attrs.get("recompute") is False else {}
            made.attrs |= asked | decided
