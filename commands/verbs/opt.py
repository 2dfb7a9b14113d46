"""This module declares the options of `mspc opt`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts


def opt(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="An .ir file, MindSpore's too; - is stdin."),
    ],
    passes: Annotated[
        str,
        typer.Option(
            "--passes", "-p", metavar="PASSES", help="For example 'grad,slice_to_rank{rank=3}'.",
        ),
    ] = "",
    verbose: opts.Verbose = False,
    quiet: opts.Quiet = False,
) -> None:
    """Read a graph, run passes on it and print it; without passes read and print."""
    from mspc.commands.opt import optimize
    from mspc.commands.report.verbosity import Loudness

    print(optimize(file, passes, Loudness(verbose, quiet)), end="")
