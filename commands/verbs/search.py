"""This module declares the options of `mspc search`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts

SeveralRanks = Annotated[
    str | None, typer.Option("--ranks", "-n", metavar="N[,N...]", help="Number of ranks, or several to compare.")
]
ProgramDevice = Annotated[
    opts.DeviceOption,
    typer.Option("--device", help="Device of the programs; auto: a named machine's device, else the script's."),
]
MemorySize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of a rank that a plan may take: '80GB'.")
]
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


def search(
    target: opts.Target,
    script_arguments: opts.ScriptArguments = None,
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
    input_: opts.Inputs = None,
    size: opts.Sizes = None,
    loss: opts.LossName = "",
    optimizer: opts.OptimizerText = "",
    precision: opts.PrecisionName = "",
    accumulate: opts.Accumulated = 1,
    plan: opts.LayerStyles = "",
    torch: opts.FromTorch = False,
    jax: opts.FromJax = False,
    json: opts.JsonFile = None,
    quiet: opts.Quiet = False,
) -> None:
    """Look for the layouts of all operators at once, and set the plan beside the usual ones."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.verbosity import Loudness
    from mspc.commands.search import (
        SearchOptions,
        memory_of,
        meshes_of,
        micro_batches_of,
        ranks_of,
        search_target,
        stages_of,
    )

    common = CompileOptions(
        inputs=tuple(input_ or ()), json=json, script_arguments=tuple(script_arguments or ()),
        loudness=Loudness(False, quiet),
        imported=opts.import_options(loss, optimizer, size, torch, precision, accumulate, plan=plan, jax=jax),
    )  # fmt: skip
    options = SearchOptions(
        common, ranks_of(ranks), top, free, machine, memory_of(memory), meshes_of(mesh), time_limit,
        explain, compare, out, None if stages is None else stages_of(stages), micro_batches_of(micro_batches),
        summary, "" if device == opts.DeviceOption.AUTO else device.upper(),
    )  # fmt: skip
    search_target(target, options)
