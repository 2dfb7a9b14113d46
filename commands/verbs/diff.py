"""This module declares the options of `mspc diff`. It imports its work when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.completion import complete_graph

_COMPARED = "A compile's folder, a graph (.ir, MindSpore's too), a plan (.toml), or as for compile."
First = Annotated[
    str, typer.Argument(metavar="A", help=_COMPARED, show_default=False, autocompletion=complete_graph)
]
Second = Annotated[
    str, typer.Argument(metavar="B", help="The other one.", show_default=False, autocompletion=complete_graph)
]
TwoStyles = Annotated[
    list[str] | None,
    typer.Option(
        "--plan", metavar="FILE|own", show_default=False,
        help="How layers of model.pt2 are sharded, as for compile; twice: of A, and of B.",
    ),
]
EveryRow = Annotated[bool, typer.Option("--all", help="Print every row, not a summary that fits a screen.")]


def diff(
    first: First, second: Second, ranks: opts.Ranks = None, input_: opts.Inputs = None, size: opts.Sizes = None,
    loss: opts.LossName = "", optimizer: opts.OptimizerText = "", plan: TwoStyles = None, torch: opts.FromTorch = False,
    jax: opts.FromJax = False, json: opts.JsonFile = None, machine: opts.MachineName = "",
    every_row: EveryRow = False, verbose: opts.Verbose = False, quiet: opts.Quiet = False,
) -> None:  # fmt: skip
    """Compare layouts, operators, collectives, memory and predicted times of two compiles; status 1 where they
    differ."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.diff import diff_targets
    from mspc.commands.report.verbosity import Loudness
    from mspc.ir.diagnostics import MspcError

    plans = tuple(plan or ("",))
    if len(plans) > 2:
        raise MspcError(f"--plan is given {len(plans)} times; once is for both, twice for A and B")
    made = [
        CompileOptions(
            ranks, inputs=tuple(input_ or ()), loudness=Loudness(verbose, quiet),
            imported=opts.import_options(loss, optimizer, size, torch, plan=each, jax=jax),
        )
        for each in plans
    ]
    raise typer.Exit(diff_targets(first, second, made[0], json, machine, every_row, quiet, made[-1]))
