"""This module declares the options of `mspc view`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.compile_options import CompileOptions, has_compile_options


@has_compile_options(
    target="script_arguments", machine="ranks input_ size loss optimizer plan torch jax strategies verbose quiet"
)
def view(
    options: CompileOptions,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="The folder of a compile, an .ir file (MindSpore's too), or as for compile.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page (default: TARGET's name with .view.html).")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Times of `mspc run --profile`, to stand beside predicted ones.")
    ] = None,
    proof: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Report of `mspc verify --scale --json FILE`, shown as a view.")
    ] = None,
    machine: opts.MachineName = "",
) -> None:
    """Write one HTML file that shows what every rank does and why: scopes, layouts, collectives with reasons, the
    step's times and memory. It needs no server and no network."""
    from mspc.commands.view.page import ViewOptions, view_target

    view_target(target, ViewOptions(options, machine, profile, proof, out, open_))
