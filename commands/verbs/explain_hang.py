"""This module declares the options of `mspc explain-hang`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts


def explain_hang(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORDS...", help="Files or folders of records of the ranks.")
    ],
    ranks: Annotated[int, typer.Option(metavar="N", min=0, help="Ranks of the job, if some have no record.")] = 0,
    program: Annotated[
        Path | None, typer.Option(metavar="PROGRAM", help="Script or capture of the job, or the folder of its compile.")
    ] = None,
    json: opts.JsonFile = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page of the calls around the fault.")
    ] = None,
) -> None:
    """Read the records of a job that hangs, and name the rank that made it hang, the collective and its source line.
    Records are flight records of PyTorch or mspc, traces of PyTorch's profiler, reports of NCCL RAS and logs of XLA."""
    from mspc.commands.explain_hang import explain_records

    raise typer.Exit(explain_records(records, ranks, program, json, page))
