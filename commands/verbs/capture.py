"""This module declares the options of `mspc capture`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts


def capture(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A script of PyTorch.")],
    script_arguments: opts.ScriptArguments = None,
    ranks: Annotated[int, typer.Option(metavar="N", min=1, help="Ranks of the job; 1 has no process group.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the files.")] = Path("capture"),
    every_rank: Annotated[bool, typer.Option("--every-rank", help="Trace every rank, not one of each kind.")] = False,
    values: Annotated[bool, typer.Option("--values", help="Compute and store values, for a run.")] = False,
) -> None:
    """Run a script of PyTorch as every rank of a job, without the other ranks, and write the step that it gives to
    mspc.capture.step: operators, collectives, gradients and the optimizer."""
    from mspc.commands.captured import capture_script

    capture_script(script, tuple(script_arguments or ()), ranks, out, values, every_rank)
