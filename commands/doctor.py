"""`mspc doctor` lists the features of MindSpore that a script uses and mspc lacks or ignores."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Generator
from pathlib import Path

from mspc.commands.report.tables import TextTable, check_json, print_line, print_table, write_report
from mspc.doctor.examination import IGNORED, LACKS, PLAIN, UNREACHED, Finding, examine, lacking

GAPS = 1
"""Exit status if mspc lacks a feature."""


def examine_script(script: Path, json: Path | None, for_gpu: bool = False) -> int:
    """Print the findings, write them as JSON on request, and return the exit status.

    Raises:
        MspcError: the script or one of its own modules is missing, cannot be read, or is not Python.
    """
    check_json(json)
    with _no_collection():
        found = examine(script, for_gpu)
    if json is not None:
        content = {"findings": [dataclasses.asdict(finding) for finding in found]}
        write_report(json, "doctor", content, GAPS if lacking(found) else 0)
    if json != Path("-"):
        _print(script, found)
    return GAPS if lacking(found) else 0


@contextlib.contextmanager
def _no_collection() -> Generator[None]:
    """Disable garbage collection: an examination frees nothing before its end, and searching for garbage among the
    nodes of hundreds of files takes as long as all its other work."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _print(script: Path, found: list[Finding]) -> None:
    if found:
        rows = [(finding.kind, finding.name, finding.place, finding.instead or "-") for finding in found]
        title = f"what {script} uses that mspc lacks or ignores"
        print_table(TextTable(title, ("kind", "name", "line", "instead"), rows, below=(3,)))
    counts = {kind: sum(finding.kind == kind for finding in found) for kind in (LACKS, IGNORED, UNREACHED, PLAIN)}
    ignored = f"; {counts[IGNORED]} that change{'s' if counts[IGNORED] == 1 else ''} nothing" if counts[IGNORED] else ""
    unreached = f"; {counts[UNREACHED]} where {script.name} does not come" if counts[UNREACHED] else ""
    plain = f"; {counts[PLAIN]} without a kernel of its own for GPUs" if counts[PLAIN] else ""
    print_line(f"{counts[LACKS] or 'no'} name{'' if counts[LACKS] == 1 else 's'} lacking{unreached}{ignored}{plain}")
