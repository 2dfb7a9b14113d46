"""This module declares the options of `mspc compile`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.engine.garbage import freeze_loaded

OnlyRanks = Annotated[
    list[int] | None,
    typer.Option("--rank", min=0, metavar="R", help="Write this rank only; may be repeated.", show_default=False),
]
SchedulePicture = Annotated[
    Path | None,
    typer.Option(
        "--schedule", metavar="FILE",
        help="Write when each stage works on which micro-batch (.txt), or that order as a table (.csv).",
    ),
]
TorchPlan = Annotated[
    Path | None,
    typer.Option("--out-torch", metavar="FILE", help="Write the plan in DTensor's words: plan.py."),
]
JaxPlan = Annotated[
    Path | None,
    typer.Option("--out-jax", metavar="FILE", help="Write the plan of step.mlir as PartitionSpecs: specs.py."),
]
ScheduleMachine = Annotated[
    str, typer.Option("--machine", metavar="NAME|FILE", help="The machine of --schedule, as of mspc search [h200].")
]


def compile_(
    target: opts.Target,
    script_arguments: opts.ScriptArguments = None,
    ranks: opts.Ranks = None,
    save_graphs: Annotated[
        bool, typer.Option("--save-graphs", help="Write the graph after every pass, not the last one alone.")
    ] = False,
    level: Annotated[
        int | None,
        typer.Option(min=1, max=3, metavar="N", help="Dumps to write: 1 main stages, 2 and 3 every pass (default)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write (default: saved_graph).")
    ] = None,
    rank: OnlyRanks = None,
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
    device: opts.CompiledFor = "",
    json: opts.JsonFile = None,
    strategies: opts.StrategiesFile = None,
    out_torch: TorchPlan = None,
    out_jax: JaxPlan = None,
    schedule: SchedulePicture = None,
    machine: ScheduleMachine = "",
    weights: Annotated[
        bool, typer.Option("--weights", help="Write all initial values, not only arrays that the script brought.")
    ] = False,
    all_rows: opts.AllRows = False,
    verbose: opts.Verbose = False,
    quiet: opts.Quiet = False,
) -> None:
    """Compile the first graph that a script launches, for all ranks; run nothing, need no MPI, no device."""
    from mspc.commands.compile import CompileOptions, compile_target
    from mspc.commands.report.verbosity import Loudness

    freeze_loaded()
    compile_target(
        target,
        CompileOptions(
            ranks=ranks, level=level or (2 if save_graphs else 0), out=out, only_ranks=tuple(rank or ()),
            inputs=tuple(input_ or ()), json=json, script_arguments=tuple(script_arguments or ()), weights=weights,
            strategies=strategies, schedule=schedule, machine=machine,
            loudness=Loudness(verbose, quiet), all_rows=all_rows, out_torch=out_torch,
            out_jax=out_jax,
            imported=opts.import_options(
                loss, optimizer, size, torch, precision, accumulate, load, plan, device, jax
            ),
        ),
    )
    freeze_loaded()  # the process ends
