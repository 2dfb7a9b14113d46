"""This module declares the options of `mspc compile`. It imports its work when it is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.compile_options import CompileOptions, has_compile_options
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
Emitted = Annotated[
    str,
    typer.Option("--emit", metavar="FORM", help="Also write every rank's program for XLA, in one module: stablehlo."),
]
Traces = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="DIR",
        help="Write the predicted step: Chakra execution traces of the ranks, and a trace for Perfetto.",
    ),
]
TimesMachine = Annotated[
    str,
    typer.Option(
        "--machine", metavar="NAME|FILE", help="The machine of --schedule and --trace, as of mspc search [h200]."
    ),
]


@has_compile_options(
    target="script_arguments ranks",
    rank="input_ size loss optimizer plan precision accumulate load torch jax device json strategies",
    weights="all_rows verbose quiet",
)
def compile_(
    options: CompileOptions,
    target: opts.Target,
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
    out_torch: TorchPlan = None,
    out_jax: JaxPlan = None,
    emit: Emitted = "",
    schedule: SchedulePicture = None,
    trace: Traces = None,
    machine: TimesMachine = "",
    weights: Annotated[
        bool, typer.Option("--weights", help="Write all initial values, not only arrays that the script brought.")
    ] = False,
) -> None:
    """Compile the first graph that a script launches, for all ranks; run nothing, need no MPI, no device."""
    from mspc.commands.compile import compile_target

    freeze_loaded()
    options = replace(
        options, level=level or (2 if save_graphs else 0), out=out, only_ranks=tuple(rank or ()), weights=weights,
        schedule=schedule, trace=trace, machine=machine, out_torch=out_torch, out_jax=out_jax,
        emit=emit,
    )  # fmt: skip
    compile_target(target, options)
    freeze_loaded()  # the process ends
