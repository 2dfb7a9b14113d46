"""The page as one file of HTML: facts as JSON and the code that shows them, without any external resource.

Facts are data only: `<` is escaped in them, so that no text of a dump ends the element that contains it, and the page's
policy allows only its own code, by its digest. Control characters of names are shown as escapes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import webbrowser
from collections.abc import Mapping
from dataclasses import field, replace
from html import escape
from pathlib import Path
from typing import Any

from mspc.commands.compile import CompileOptions
from mspc.commands.facts.reading import check_used, compiled_folder, file_of, is_script
from mspc.commands.report.tables import counted, print_line, size_text
from mspc.commands.report.verbosity import ProgressLine
from mspc.commands.view.dump import read_dump
from mspc.commands.view.proof import page_facts
from mspc.ir.diagnostics import CONTROL, shown
from mspc.ir.files.atomic_writing import check_writable, utf8_bytes, write_atomically
from mspc.ir.late_dataclass import dataclass
from mspc.search.calibration.machine_file import machine_of

_ESCAPED = re.compile(rf"\\(?:u[0-9a-f]{{4}}|.)|{CONTROL}")
"""An escape of JSON, or a character that is shown as an escape."""
BUILT = Path(__file__).parent / "page" / "built"
"""Folder of the code and the styles that `page/package.json` builds."""


def html_of(facts: Mapping[str, Any]) -> str:
    """Return the text of the page for these facts."""
    code, styles = ((BUILT / name).read_text(encoding="utf-8") for name in ("view.js", "view.css"))
    data = json.dumps(facts, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    data = _ESCAPED.sub(_as_text, data).replace("<", f"\\u{ord('<'):04x}")
    policy = (
        f"default-src 'none'; script-src {_digest(code)}; style-src {_digest(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escape(f"{shown(facts['title'])} - mspc view")
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{styles}</style>\n</head>\n"
        '<body>\n<div id="page">This page needs JavaScript, which runs from this file alone.</div>\n'
        f'<script type="application/json" id="facts">{data}</script>\n'
        f"<script>{code}</script>\n</body>\n</html>\n"
    )


def _as_text(found: re.Match[str]) -> str:
    """Return an escape of JSON in which a control character, or one that changes the direction of writing, is shown as
    names of files are shown everywhere. Tabs stay, because they indent source lines."""
    character = json.loads(f'"{found[0]}"') if found[0].startswith("\\") else found[0]
    text = shown(character, lines=character == "\t")
    return found[0] if text == character else text.replace("\\", "\\\\")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


ENDING = ".view.html"
"""Ending of the default names of pages."""
RANKS = 16
"""Most ranks of a script that are all written, so that the page has the values of each, and most ranks that may have
networks of their own."""


@dataclass(frozen=True)
class ViewOptions:
    """The flags of `mspc view`. compile: options for a script. machine: its name or a file, "" for H200s. profile: of a
    run. proof: a report of `mspc verify --scale`. out: the page. open: show it in the browser."""

    compile: CompileOptions = field(default_factory=CompileOptions)
    machine: str = ""
    profile: Path | None = None
    proof: Path | None = None
    out: Path | None = None
    open: bool = False


def view_target(target: str, options: ViewOptions) -> None:
    """Write the page of a folder, a file or a script, and print its path. Raise MspcError if the target is no dump and
    no script that compiles, the profile is of another compile, or the page cannot be written."""
    shown_as = Path(os.path.realpath(file_of(target)))
    out = options.out or Path((shown_as.name if shown_as.is_dir() else shown_as.stem) + ENDING)
    check_writable(out, "--out")
    quiet = options.compile.loudness.quiet
    with ProgressLine(not quiet) as progress:
        progress.show(f"reading {target}")
        facts = facts_of(target, options)
        progress.show(f"writing {out}")
        size = write_page(out, facts)
    if not quiet:
        print_line(f"{out}: {_summary(facts)}, {size_text(size)}")
    if options.open:
        webbrowser.open(Path(os.path.realpath(out)).as_uri())


def write_page(out: Path, facts: Mapping[str, Any]) -> int:
    """Write the page for these facts. Return its size in bytes."""
    content = utf8_bytes(html_of(facts))
    write_atomically(out, lambda file: file.write(content))
    return len(content)


def facts_of(target: str, options: ViewOptions) -> dict[str, Any]:
    """Return the content of the page for a target. Raise MspcError as `view_target` does."""
    machine = machine_of(options.machine)
    if not is_script(target):
        check_used((target,), options.compile)
        return page_facts(read_dump(Path(target), machine), options.profile, options.proof)
    with compiled_folder(target, replace(options.compile, kinds_only=True, few=RANKS)) as folder:
        return page_facts(replace(read_dump(folder, machine), name=target), options.profile, options.proof)


def _summary(facts: dict[str, Any]) -> str:
    foreign, main = facts["dialect"], facts["main"]
    shown = [graph for i, graph in enumerate(facts["graphs"]) if foreign or main in (i, graph.get("root"))]
    nodes, collectives = (sum(map(len, those)) for those in (
        [graph["nodes"]["op"] for graph in shown], [graph["collectives"] for graph in shown]
    ))  # fmt: skip
    counts = counted(nodes, "node"), counted(collectives, "collective")
    if not facts["programs"]:
        return ", ".join(counts)
    return f"{', '.join(counts)} of {counted(facts['ranks'], 'rank')} in {counted(len(facts['programs']), 'program')}"
