"""This module declares the options of `mspc verify`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.compile_options import CompileOptions, has_compile_options

TORCH = "torch"
"""Value of --against for a comparison with PyTorch."""


@has_compile_options(
    target="script_arguments ranks input_ size loss optimizer plan precision accumulate load torch jax strategies",
    scale="json all_rows verbose quiet",
)
def verify(
    options: CompileOptions,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="As for compile, or its folder.")],
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
) -> None:
    """Run some steps on one device and on N simulated ranks and compare every output, gradient and parameter."""
    from mspc.commands.verify import verify_target
    from mspc.ir.diagnostics import MspcError

    has_module = against not in (None, TORCH) and (options.imported.jax or target.endswith(opts.STABLEHLO))
    if scale or has_module:
        from mspc.commands.verify import verify_scale

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
