"""This module declares the options of `mspc run`. It imports its work when it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.ir.diagnostics import MspcError


def run(
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="A script, the folder of a compile, or step.mlir."),
    ],
    script_arguments: opts.ScriptArguments = None,
    ranks: opts.Ranks = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Run all ranks in this process, without MPI.")] = False,
    only_rank: Annotated[
        int | None, typer.Option(min=0, metavar="R", help="Print the output of this rank only.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="NPZ", help="Inputs of a compiled program: global arrays by name.")
    ] = None,
    synthetic: Annotated[
        bool,
        typer.Option("--synthetic", help="Make the inputs of a compiled program up: uniform [0, 1), seed 0."),
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, metavar="S", help="Steps of a compiled program.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the full parameters after the last step (safetensors)."),
    ] = None,
    save_outputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outputs of a compiled program (npz).")
    ] = None,
    strategies: opts.StrategiesFile = None,
    device: Annotated[
        opts.DeviceOption,
        typer.Option(help="Device to run on; auto: the script's, else GPUs if there are enough."),
    ] = opts.DeviceOption.AUTO,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits at every run, on a GPU too.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long to wait for a rank that is stopped or missing [60], and to run a loop without a count.",
        ),
    ] = 0.0,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Time some steps: a trace of all ranks (JSON) and a table of rank 0."),
    ] = None,
    profile_steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The most steps that --profile times [5].")
    ] = None,
) -> None:
    """Train a script, or execute a compiled program: under mpirun, with --ranks N, or with --simulate."""
    from mspc.engine.profile_options import profile_options
    from mspc.runtime.device_choice import DeviceOptions

    wishes = DeviceOptions(str(device), deterministic, opts.check_seconds("--timeout", timeout))
    profiled = profile_options(profile, profile_steps)
    if os.path.isdir(target):
        if script_arguments or only_rank is not None or strategies is not None:
            raise MspcError(
                f"{target} is a folder, so a compiled program",
                notes=["script arguments, --only-rank and --strategies are for scripts"],
            )
        from mspc.commands.run import run_directory

        run_directory(
            target, data=data, synthetic=synthetic, steps=steps, save=save, save_outputs=save_outputs,
            simulate=simulate, ranks=ranks, wishes=wishes, profile=profiled,
        )  # fmt: skip
        return
    if opts.is_stablehlo(target):
        from mspc.commands.compile import CompileOptions
        from mspc.commands.facts.reading import compiled_folder
        from mspc.commands.report.verbosity import Loudness
        from mspc.commands.run import run_directory

        with compiled_folder(str(target), CompileOptions(ranks=ranks, loudness=Loudness(False, True))) as folder:
            run_directory(
                folder, data=data, synthetic=synthetic or data is None, steps=steps, save=save,
                save_outputs=save_outputs, simulate=simulate, ranks=ranks, wishes=wishes, profile=profiled,
            )  # fmt: skip
        return
    if data or synthetic or steps or save or save_outputs:
        raise MspcError(
            f"{target} is no compiled program; --data, --synthetic, --steps and --save... are for these",
            notes=["a compiled program is the folder that `mspc compile` writes"],
            code="E0110",
        )
    from mspc.commands.run import run_script

    run_script(
        target, ranks=ranks, simulate=simulate, only_rank=only_rank, script_arguments=tuple(script_arguments or ()),
        wishes=wishes, profile=profiled, strategies=strategies,
    )  # fmt: skip
