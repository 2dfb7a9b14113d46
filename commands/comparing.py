"""The options of `mspc diff` and `mspc check`. Each imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands.completion import complete_graph
from mspc.commands.options import JsonFile
from mspc.commands.search_options import MachineName

Compared = Annotated[
    Path,
    typer.Argument(
        show_default=False, help="The folder of a compile, a graph (.ir, MindSpore's too) or a plan (.toml).",
        autocompletion=complete_graph,
    ),
]
Page = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as a page (HTML).")]


def diff(
    first: Compared, second: Compared, json: JsonFile = None, html: Page = None, machine: MachineName = ""
) -> None:
    """Compare layouts, operators, collectives, memory and predicted times of two compiles; status 1 where they
    differ."""
    from mspc.commands.diff import diff_targets

    raise typer.Exit(diff_targets(first, second, json, html, machine))
