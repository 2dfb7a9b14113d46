"""`mspc doctor` lists the features of MindSpore that a script uses and mspc lacks or ignores. The module imports its
work when it is called."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mspc.commands import options as opts

if TYPE_CHECKING:
    from mspc.doctor.examination import Finding

GAPS = 1
"""Exit status if mspc lacks a feature."""


def doctor(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A script.")],
    json: opts.JsonFile = None,
) -> None:
    """Read a script and the modules of its own that it imports, run nothing, and list every name, argument and setting
    of MindSpore that mspc lacks or ignores. Status 1 where it lacks one."""
    from mspc.commands.report.tables import write_report
    from mspc.doctor.examination import examine, lacking

    # An examination frees nothing before its end, and searching for garbage among the nodes of hundreds of files takes
    # as long as all its other work.
    collects = gc.isenabled()
    gc.disable()
    try:
        found = examine(script)
    finally:
        if collects:
            gc.enable()
    status = GAPS if lacking(found) else 0
    if json is not None:
        write_report(json, "doctor", {"findings": [dataclasses.asdict(finding) for finding in found]}, status)
    if json != Path("-"):
        _print(script, found)
    raise typer.Exit(status)


def _print(script: Path, found: list[Finding]) -> None:
    from mspc.commands.report.tables import TextTable, print_line, print_table
    from mspc.doctor.examination import IGNORED, LACKS, UNREACHED

    if found:
        rows = [(finding.kind, finding.name, finding.place, finding.instead or "-") for finding in found]
        title = f"what {script} uses that mspc lacks or ignores"
        print_table(TextTable(title, ("kind", "name", "line", "instead"), rows, below=(3,)))
    counts = {kind: sum(finding.kind == kind for finding in found) for kind in (LACKS, IGNORED, UNREACHED)}
    ignored = f"; {counts[IGNORED]} that change{'s' if counts[IGNORED] == 1 else ''} nothing" if counts[IGNORED] else ""
    unreached = f"; {counts[UNREACHED]} where {script.name} does not come" if counts[UNREACHED] else ""
    print_line(f"{counts[LACKS] or 'no'} name{'' if counts[LACKS] == 1 else 's'} lacking{unreached}{ignored}")
