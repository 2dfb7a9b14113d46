"""This module declares the options of `mspc search`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.compile_options import CompileOptions, has_compile_options

SeveralRanks = Annotated[
    str | None, typer.Option("--ranks", "-n", metavar="N[,N...]", help="Number of ranks, or several to compare.")
]
ProgramDevice = Annotated[
    opts.DeviceOption,
    typer.Option("--device", help="Device of the programs; auto: a named machine's device, else the script's."),
]
MemorySize = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of a rank that a plan may take: '80GB'.")]
Meshes = Annotated[
    str | None, typer.Option(metavar="MxN[,MxN...]", help="Mesh that is sharded for, or several: '8x8,16x4'.")
]
SeveralStages = Annotated[
    str | None,
    typer.Option("--stages", metavar="S[,S...]", help="Numbers of stages to try; auto: all that the ranks allow."),
]
SeveralMicroBatches = Annotated[
    str | None,
    typer.Option("--micro-batches", metavar="M[,M...]", help="Numbers of micro-batches to try; else the script's."),
]
TimeLimit = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="End a search with the best so far; 0: when it is done.")
]
Explained = Annotated[
    str, typer.Option(metavar="NODE", help="Explain an operator's sharding and its alternatives, instead of plans.")
]
TwoPlans = Annotated[
    tuple[Path, Path] | None, typer.Option(metavar="A B", help="Compare two plan files, instead of plans.")
]


@has_compile_options(
    target="script_arguments", out="input_ size loss optimizer precision accumulate plan torch jax json quiet"
)
def search(
    options: CompileOptions,
    target: opts.Target,
    ranks: SeveralRanks = None,
    machine: opts.MachineName = "",
    device: ProgramDevice = opts.DeviceOption.AUTO,
    memory: MemorySize = None,
    mesh: Meshes = None,
    stages: SeveralStages = None,
    micro_batches: SeveralMicroBatches = None,
    time_limit: TimeLimit = 0,
    explain: Explained = "",
    compare: TwoPlans = None,
    free: Annotated[bool, typer.Option("--free", help="Leave out the strategies that the script gives.")] = False,
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Plans in the table for each number of ranks.")] = 5,
    summary: Annotated[
        bool, typer.Option("--summary", help="Say the best plan, and the best usual one, as DP x TP x PP x CP x EP.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan that was found (TOML), to edit and to compile.")
    ] = None,
) -> None:
    """Look for the layouts of all operators at once, and set the plan beside the usual ones."""
    from mspc.commands.search import (
        SearchOptions,
        memory_of,
        meshes_of,
        micro_batches_of,
        ranks_of,
        search_target,
        stages_of,
    )

    wanted = SearchOptions(
        options, ranks_of(ranks), top, free, machine, memory_of(memory), meshes_of(mesh), time_limit,
        explain, compare, out, None if stages is None else stages_of(stages), micro_batches_of(micro_batches),
        summary, "" if device == opts.DeviceOption.AUTO else device.upper(),
    )  # fmt: skip
    search_target(target, wanted)
