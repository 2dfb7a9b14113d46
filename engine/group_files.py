"""Writes the file of groups that a script or GROUP_INFO_FILE asks for: which ranks hold the same as this one."""

from __future__ import annotations

import os
from pathlib import Path

from mspc.api.context import FrozenContext
from mspc.checkpoint.strategy_file import write_groups
from mspc.compiler.driver import Compiled
from mspc.ir.layout import Layout
from mspc.ops.collective.base import Collective
from mspc.sharding.groups import group_name


def write_group_file(compiled: Compiled, context: FrozenContext, rank: int) -> None:
    """Write the groups of a rank's collectives, and the ranks whose slices of all parameters are its own, where a file
    is asked for and ranks share one program. Raises MspcError."""
    path = context.group_ckpt_save_file or os.environ.get("GROUP_INFO_FILE", "")
    mode = compiled.config.mode
    if not path or not (compiled.config.sharded or mode == "data_parallel"):
        return
    alike = set(range(compiled.config.ranks))
    for parameter in compiled.graph.parameters:
        layout = parameter.layout
        if parameter.kind == "parameter" and isinstance(layout, Layout):
            alike &= set(layout.group(layout.unused, rank))
    groups: dict[str, tuple[int, ...]] = {}
    for node in compiled.rank_graph(rank).nodes:
        if isinstance(node.op, Collective):
            ranks = tuple(getattr(node.op, "rank_list", ()))
            groups[group_name(ranks)] = ranks
    write_groups(Path(path), groups, sorted(alike))
