"""This module declares the options of `mspc verify`. It imports its work when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from mspc.commands.completion import complete_script
from mspc.commands.options import (
    Accumulated,
    AllRows,
    FromTorch,
    Inputs,
    JsonFile,
    Judge,
    LayerStyles,
    Loaded,
    LossName,
    OptimizerText,
    PrecisionName,
    Quiet,
    Ranks,
    ScriptArguments,
    Sizes,
    StrategiesFile,
    Verbose,
    import_options,
)


def verify(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="As for compile, or its folder.", autocompletion=complete_script)
    ],
    script_arguments: ScriptArguments = None,
    ranks: Ranks = None,
    input_: Inputs = None,
    size: Sizes = None,
    loss: LossName = "",
    optimizer: OptimizerText = "",
    plan: LayerStyles = "",
    precision: PrecisionName = "",
    accumulate: Accumulated = 1,
    load: Loaded = None,
    torch: FromTorch = False,
    strategies: StrategiesFile = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the data and weights that are compared.")] = 0,
    against: Annotated[
        Judge | None, typer.Option(help="Hold one device against PyTorch instead, operator by operator.")
    ] = None,
    mpi: Annotated[bool, typer.Option("--mpi", help="Run the ranks under mpirun, not in this process.")] = False,
    scale: Annotated[
        bool, typer.Option("--scale", help="Prove every rank's program at small sizes, all ranks at once.")
    ] = False,
    json: JsonFile = None,
    all_rows: AllRows = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run some steps on one device and on N simulated ranks and compare every output, gradient and parameter."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.verbosity import Loudness
    from mspc.commands.verify import verify_target
    from mspc.ir.diagnostics import MspcError

    options = CompileOptions(
        ranks=ranks,
        inputs=tuple(input_ or ()),
        imported=import_options(loss, optimizer, size, torch, precision, accumulate, load, plan),
        json=json,
        strategies=strategies,
        script_arguments=tuple(script_arguments or ()),
        loudness=Loudness(verbose, quiet),
        all_rows=all_rows,
    )
    if scale:
        from mspc.commands.verify_scale import verify_scale

        if against is not None or mpi:
            notes = ["leave out --against and --mpi"]
            raise MspcError("--scale holds ranks to one device in this process", notes=notes)
        verify_scale(target, options, seed)
        return
    verify_target(target, options, seed, against is Judge.TORCH, mpi)
