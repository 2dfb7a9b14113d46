"""This module declares the options of `mspc diff`. It imports its work when it is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.compile_options import CompileOptions, has_compile_options

_COMPARED = "A compile's folder, a graph (.ir, MindSpore's too), a plan (.toml), or as for compile."
First = Annotated[str, typer.Argument(metavar="A", help=_COMPARED, show_default=False)]
Second = Annotated[str, typer.Argument(metavar="B", help="The other one.", show_default=False)]
TwoStyles = Annotated[
    list[str] | None,
    typer.Option(
        "--plan",
        metavar="FILE|own",
        show_default=False,
        help="How layers of model.pt2 are sharded, as for compile; twice: of A, and of B.",
    ),
]


@has_compile_options(second="ranks input_ size loss optimizer", plan="torch jax json", machine="all_rows verbose quiet")
def diff(
    options: CompileOptions, first: First, second: Second, plan: TwoStyles = None, machine: opts.MachineName = ""
) -> None:
    """Compare layouts, operators, collectives, memory and predicted times of two compiles; status 1 where they
    differ."""
    from mspc.commands.diff import diff_targets
    from mspc.ir.diagnostics import MspcError

    plans = plan or [""]
    if len(plans) > 2:
        raise MspcError(f"--plan is given {len(plans)} times; once is for both, twice for A and B")
    ours, theirs = (replace(options, imported=replace(options.imported, plan=each)) for each in (plans[0], plans[-1]))
    raise typer.Exit(diff_targets(first, second, ours, machine, theirs))
