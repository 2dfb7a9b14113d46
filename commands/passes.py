"""`mspc passes` prints the passes of a compile in order."""

from __future__ import annotations

from pathlib import Path

from mspc.commands.report.tables import TextTable, check_json, print_table, write_json
from mspc.compiler.pipeline import DATA, LOCAL, SHARDED, STEPS, Step, kind_of_mode
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.passes.base import find_pass

MODES = ("semi_auto_parallel", "auto_parallel", "data_parallel", "hybrid_parallel", "stand_alone")


def list_passes(mode: str | None, device: str | None, json: Path | None) -> None:
    """Print the pipeline, restricted to one parallel mode and one device if given, and write it as JSON on request.

    Raises:
        MspcError: there is no such mode.
    """
    check_json(json)
    if mode is not None and mode not in MODES:
        raise MspcError(f"there is no parallel mode {mode!r}", notes=did_you_mean(mode, MODES) or [", ".join(MODES)])
    steps = [
        step
        for step in STEPS
        if (mode is None or kind_of_mode(mode) in step.modes)
        and (device in (None, "auto") or step.runs_on(device.upper()))
    ]
    rows = [{"name": step.name, "runs": conditions_of(step), "summary": summary_of(step.name)} for step in steps]
    if json is not None:
        write_json(rows, json)
    if json != Path("-"):
        cells = [(row["name"], row["runs"], row["summary"]) for row in rows]
        print_table(TextTable(f"{len(rows)} passes", ("pass", "runs", "effect"), cells))


def summary_of(name: str) -> str:
    """Return the first sentence of a pass's documentation, without its period."""
    paragraph = " ".join((type(find_pass(name)).__doc__ or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def conditions_of(step: Step) -> str:
    """Return the compiles in which a pass runs, in words."""
    words: list[str] = []
    if step.modes != (SHARDED, DATA, LOCAL):
        words.append(" or ".join({SHARDED: "sharded", DATA: "data parallel"}[kind] for kind in step.modes))
    if step.device:
        words.append(step.device)
    flags = {"stages": step.staged, "offloading": step.offloads, "regions": step.regions}
    words += [name for name, needed in flags.items() if needed]
    return ", ".join(words) or "always"
