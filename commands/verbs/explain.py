"""`mspc explain` prints the explanation of an error's code. The module imports its work when it is called."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mspc.commands import options as opts
from mspc.ir.diagnostics import MspcError, did_you_mean

if TYPE_CHECKING:
    from mspc.ir.error_codes import ErrorCode


def explain(
    codes: Annotated[
        list[str] | None, typer.Argument(metavar="[CODE...]", help="Codes as in E0401; all of them if none is given.")
    ] = None,
    json: opts.JsonFile = None,
) -> None:
    """Explain the codes of errors, each with a wrong and a right example."""
    from mspc.commands.report.tables import TextTable, line_width, print_table, write_json
    from mspc.ir.error_codes import mistakes

    known = {entry.code: entry for entry in mistakes()}
    wanted = [code.upper() for code in codes or ()]
    for code in wanted:
        if code not in known:
            notes = did_you_mean(code, known) or ["mspc explain lists all codes"]
            raise MspcError(f"there is no error code {code!r}", notes=notes, code="E0114")
    entries = [known[code] for code in wanted or known]
    if json is not None:
        write_json([{"code": e.code, "title": e.title, "text": e.text, "wrong": e.wrong, "right": e.right}
                    for e in entries], json)  # fmt: skip
    if json == Path("-"):
        return
    if not wanted:
        print_table(TextTable(f"{len(entries)} kinds of mistakes", ("code", "mistake"), [e[:2] for e in entries]))
        return
    for entry in entries:
        lines = textwrap.wrap(entry.text, line_width(), break_long_words=False, break_on_hyphens=False)
        print("\n".join([f"{entry.code}: {entry.title}", "", *lines]))
        for heading, text in (("Wrong", entry.wrong), ("Right", entry.right)) if entry.example else ():
            print(f"\n{heading}:\n{textwrap.indent(text, '    ')}")
        if entry is not entries[-1]:
            print()


def page_of(entry: ErrorCode) -> str:
    """Return the page of the reference about a kind of mistake, in Markdown."""
    blocks = [f"# {entry.code}: {entry.title}", entry.text]
    language = "console" if entry.example.startswith("$") else "python" if entry.example[:1] not in "#r" else "text"
    for heading, text in (("Wrong", entry.wrong), ("Right", entry.right)) if entry.example else ():
        blocks += [f"{heading}:", f"```{language}\n{text}\n```"]
    return "\n\n".join(blocks) + "\n"
