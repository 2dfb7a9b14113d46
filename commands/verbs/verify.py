"""This module declares the options of `mspc verify`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.completion import complete_script

TORCH = "torch"
"""Value of --against for a comparison with PyTorch."""


def verify(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="As for compile, or its folder.", autocompletion=complete_script)
    ],
    script_arguments: opts.ScriptArguments = None,
    ranks: opts.Ranks = None,
    input_: opts.Inputs = None,
    size: opts.Sizes = None,
    loss: opts.LossName = "",
    optimizer: opts.OptimizerText = "",
    plan: opts.LayerStyles = "",
    precision: opts.PrecisionName = "",
    accumulate: opts.Accumulated = 1,
    load: opts.Loaded = None,
    torch: opts.FromTorch = False,
    jax: opts.FromJax = False,
    strategies: opts.StrategiesFile = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the compared data and weights.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="torch|DIR|FILE",
            help="Hold one device against PyTorch, operator by operator; step.mlir against XLA's partitioned module; "
            "with --scale: a capture against one device's.",
        ),
    ] = None,
    mpi: Annotated[bool, typer.Option("--mpi", help="Run the ranks under mpirun, not in this process.")] = False,
    scale: Annotated[
        bool, typer.Option("--scale", help="Prove every rank's program at small sizes, all ranks at once.")
    ] = False,
    json: opts.JsonFile = None,
    all_rows: opts.AllRows = False,
    verbose: opts.Verbose = False,
    quiet: opts.Quiet = False,
) -> None:
    """Run some steps on one device and on N simulated ranks and compare every output, gradient and parameter."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.verbosity import Loudness
    from mspc.commands.verify import verify_target
    from mspc.ir.diagnostics import MspcError

    options = CompileOptions(
        ranks=ranks,
        inputs=tuple(input_ or ()),
        imported=opts.import_options(loss, optimizer, size, torch, precision, accumulate, load, plan, jax=jax),
        json=json,
        strategies=strategies,
        script_arguments=tuple(script_arguments or ()),
        loudness=Loudness(verbose, quiet),
        all_rows=all_rows,
    )
    has_module = against not in (None, TORCH) and (jax or target.endswith(opts.STABLEHLO))
    if scale or has_module:
        from mspc.commands.verify_scale import verify_scale

        if against == TORCH or mpi:
            notes = ["leave out --against torch and --mpi"]
            raise MspcError("--scale holds ranks to one device in this process", notes=notes)
        verify_scale(target, options, seed, None if against is None else Path(against))
        return
    if against not in (None, TORCH):
        raise MspcError(
            f"--against must be {TORCH}, not {against!r:.100}",
            notes=[
                "with --scale it may be the folder of a capture of one device",
                f"for a step of JAX ({opts.STABLEHLO}) it may be the module that XLA's partitioner made of it",
            ],
            code="E0105",
        )
    verify_target(target, options, seed, against == TORCH, mpi)
