"""`mspc view` reads a dump, or compiles a script first, and writes the page."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from mspc.commands.compile import CompileOptions
from mspc.commands.facts.targets import check_used, compiled_folder, file_of, is_script
from mspc.commands.report.progress import ProgressLine
from mspc.commands.report.table import print_line
from mspc.commands.report.text import size_text
from mspc.commands.view.dump import read_dump, several
from mspc.commands.view.facts import page_facts
from mspc.commands.view.page import html_of
from mspc.ir.files.atomic_writing import check_writable, utf8_bytes, write_atomically
from mspc.ir.late_dataclass import dataclass
from mspc.search.calibration.machine_file import machine_of

ENDING = ".view.html"
"""What the names of pages end in where nobody names them."""
RANKS = 16
"""Ranks of a script up to which all are written, so that the page has what they have of their own, and at most so many
whose networks are their own."""


@dataclass(frozen=True)
class ViewOptions:
    """The flags of `mspc view`. compile: of a script. machine: its name or a file, "" for H200s. profile: of a run.
    proof: of `mspc verify --scale`. out: the page. open: show it in the browser."""

    compile: CompileOptions = field(default_factory=CompileOptions)
    machine: str = ""
    profile: Path | None = None
    proof: Path | None = None
    out: Path | None = None
    open: bool = False


def view_target(target: str, options: ViewOptions) -> None:
    """Write the page of a folder, a file or a script, and say where it is.

    Raises:
        MspcError: the target is no dump and no script that compiles, the profile is of another compile, or the page
            cannot be written.
    """
    out = options.out or Path(_stem(target) + ENDING)
    check_writable(out, "--out")
    quiet = options.compile.loudness.quiet
    with ProgressLine(not quiet) as progress:
        progress.show(f"reading {target}")
        facts = facts_of(target, options)
        progress.show(f"writing {out}")
        content = utf8_bytes(html_of(facts))
        write_atomically(out, lambda file: file.write(content))
    if not quiet:
        print_line(f"{out}: {_summary(facts)}, {size_text(len(content))}")
    if options.open:
        webbrowser.open(Path(os.path.realpath(out)).as_uri())


def facts_of(target: str, options: ViewOptions) -> dict[str, Any]:
    """What the page of a target shows. Raises MspcError as `view_target` does."""
    machine = machine_of(options.machine)
    if not is_script(target):
        check_used((target,), options.compile)
        return page_facts(read_dump(Path(target)), machine, options.profile, options.proof)
    with compiled_folder(target, replace(options.compile, kinds_only=True, few=RANKS)) as folder:
        dump = read_dump(folder)
        dump.title = os.path.basename(target)
        return page_facts(dump, machine, options.profile, options.proof)


def _stem(target: str) -> str:
    """What a page is called: the folder, the file or the script that it shows, in the working folder."""
    path = Path(os.path.realpath(file_of(target)))
    return path.name if path.is_dir() else path.stem


def _summary(facts: dict[str, Any]) -> str:
    foreign, main = facts["dialect"], facts["main"]
    shown = [graph for i, graph in enumerate(facts["graphs"]) if foreign or main in (i, graph.get("root"))]
    nodes, collectives = (sum(map(len, those)) for those in (
        [graph["nodes"]["op"] for graph in shown], [graph["collectives"] for graph in shown]
    ))  # fmt: skip
    counts = several(nodes, "node"), several(collectives, "collective")
    if not facts["programs"]:
        return ", ".join(counts)
    return f"{', '.join(counts)} of {several(facts['ranks'], 'rank')} in {several(len(facts['programs']), 'program')}"

