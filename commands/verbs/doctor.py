"""This module declares the options of `mspc doctor`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.completion import complete_script


def doctor(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A script.", autocompletion=complete_script)],
    json: opts.JsonFile = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="List calls without a kernel of their own for GPUs, too.")] = False,
) -> None:
    """Read a script and the modules of its own that it imports, run nothing, and list every name, argument and setting
    of MindSpore that mspc lacks or ignores. Status 1 where it lacks one."""
    from mspc.commands.doctor import examine_script

    raise typer.Exit(examine_script(script, json, gpu))
