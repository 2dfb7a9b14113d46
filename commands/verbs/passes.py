"""`mspc passes` prints the passes of a compile in order. The module imports its work when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mspc.commands import options as opts
from mspc.ir.diagnostics import MspcError, did_you_mean

if TYPE_CHECKING:
    from mspc.compiler.pipeline import Step

MODES = ("semi_auto_parallel", "auto_parallel", "data_parallel", "hybrid_parallel", "stand_alone")


def passes(
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="Only passes of a parallel mode, as data_parallel.", show_default=False),
    ] = None,
    device: Annotated[
        opts.DeviceOption | None, typer.Option(help="Only passes for one device.", show_default=False)
    ] = None,
    json: opts.JsonFile = None,
) -> None:
    """List the passes of a compile in order."""
    from mspc.commands.report.tables import TextTable, print_table, write_json
    from mspc.compiler.pipeline import STEPS, kind_of_mode
    from mspc.passes.base import find_pass

    if mode is not None and mode not in MODES:
        raise MspcError(
            f"there is no parallel mode {mode!r}", notes=did_you_mean(mode, MODES) or [", ".join(MODES)], code="E0113"
        )
    rows: list[dict[str, str]] = []
    for step in STEPS:
        if mode is not None and kind_of_mode(mode) not in step.modes:
            continue
        if device in (None, opts.DeviceOption.AUTO) or step.runs_on(device.upper()):
            found = type(find_pass(step.name))
            text = found.__doc__ or sys.modules[found.__module__].__doc__ or ""  # one of the two describes the pass
            effect = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
            rows.append({"name": step.name, "runs": conditions_of(step), "summary": effect})
    if json is not None:
        write_json(rows, json)
    if json != Path("-"):
        cells = [(row["name"], row["runs"], row["summary"]) for row in rows]
        print_table(TextTable(f"{len(rows)} passes", ("pass", "runs", "effect"), cells))


def conditions_of(step: Step) -> str:
    """Return the compiles in which a pass runs, in words."""
    from mspc.compiler.pipeline import DATA, LOCAL, SHARDED

    words: list[str] = []
    if step.modes != (SHARDED, DATA, LOCAL):
        words.append(" or ".join({SHARDED: "sharded", DATA: "data parallel"}[kind] for kind in step.modes))
    if step.device:
        words.append(step.device)
    flags = {"stages": step.staged, "offloading": step.offloads, "regions": step.regions}
    words += [name for name, needed in flags.items() if needed]
    return ", ".join(words) or "always"
