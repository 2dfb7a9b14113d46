"""This module declares the options of `mspc view`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.completion import complete_script


def view(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="The folder of a compile, an .ir file (MindSpore's too), or as for compile.",
            autocompletion=complete_script,
        ),
    ],
    script_arguments: opts.ScriptArguments = None,
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
    ranks: opts.Ranks = None,
    input_: opts.Inputs = None,
    size: opts.Sizes = None,
    loss: opts.LossName = "",
    optimizer: opts.OptimizerText = "",
    plan: opts.LayerStyles = "",
    torch: opts.FromTorch = False,
    jax: opts.FromJax = False,
    strategies: opts.StrategiesFile = None,
    verbose: opts.Verbose = False,
    quiet: opts.Quiet = False,
) -> None:
    """Write one HTML file that shows what every rank does and why: scopes, layouts, collectives with reasons, the
    step's times and memory. It needs no server and no network."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.verbosity import Loudness
    from mspc.commands.view.page import ViewOptions, view_target

    common = CompileOptions(
        ranks=ranks, inputs=tuple(input_ or ()), script_arguments=tuple(script_arguments or ()), strategies=strategies,
        loudness=Loudness(verbose, quiet),
        imported=opts.import_options(loss, optimizer, size, torch, plan=plan, jax=jax),
    )  # fmt: skip
    view_target(target, ViewOptions(common, machine, profile, proof, out, open_))
