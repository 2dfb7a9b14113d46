"""This module declares the options of `mspc explain-hang`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts


def explain_hang(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORDS...", help="Files or folders of flight records, one for each rank.")
    ],
    ranks: Annotated[int, typer.Option(metavar="N", min=0, help="Ranks of the job, if some have no record.")] = 0,
    program: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of mspc compile for a capture or script of the job.")
    ] = None,
    json: opts.JsonFile = None,
) -> None:
    """Read the flight records of a PyTorch job that hangs, and name the rank that made it hang, the collective and its
    source line."""
    from mspc.commands.explain_hang import explain_records

    raise typer.Exit(explain_records(records, ranks, program, json))
