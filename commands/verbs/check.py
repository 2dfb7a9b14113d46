"""This module declares the options of `mspc check`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.compile_options import CompileOptions, has_compile_options

BaselineFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Figures of an earlier compile, which are the limits.")
]
MostCollectives = Annotated[
    list[str] | None,
    typer.Option(metavar="[OPERATOR=]N", show_default=False, help="Collectives of a rank in one step at most."),
]
Forbidden = Annotated[
    list[str] | None,
    typer.Option(metavar="'OPERATOR [in CELL]'", show_default=False, help="A collective that may not be there."),
]
Tolerance = Annotated[str | None, typer.Option(metavar="SHARE", help="By how much they may be larger: '5%'.")]
WrittenBaseline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the figures of this compile for --baseline.")
]


@has_compile_options(
    write_baseline="ranks input_ size loss optimizer plan torch jax strategies json all_rows verbose quiet"
)
def check(
    options: CompileOptions,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", show_default=False, help="The folder of a compile, a graph (.ir), or as for compile.",
        ),
    ],
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes that a rank may send in one step: '3MB'.")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that a rank's step may take: '60GB'.")
    ] = None,
    max_collectives: MostCollectives = None,
    max_step: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that a step may be predicted to take: '3ms'.")
    ] = None,
    max_idle: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Part of a step in which a stage may be idle: '20%'.")
    ] = None,
    forbid: Forbidden = None,
    budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with a table [mspc.budget]; options go before it.")
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="A budget of a file with several: [mspc.budgets.NAME].")
    ] = "",
    baseline: BaselineFile = None,
    tolerance: Tolerance = None,
    write_baseline: WrittenBaseline = None,
) -> None:
    """Hold a compile to a budget of bytes, memory, time and collectives; status 1 where it breaks a limit, with the
    collectives that do."""
    from mspc.commands.budget.limits import COLLECTIVES, budget_of, counts_of
    from mspc.commands.check import Limits, check_target

    counts = counts_of(max_collectives, f"--{COLLECTIVES}") if max_collectives else None
    given = {
        "max-bytes": max_bytes, "max-memory": max_memory, "max-collectives": counts, "max-step": max_step,
        "max-idle": max_idle, "forbid": forbid,
    }  # fmt: skip
    share = None if tolerance is None else opts.share_of(tolerance, "--tolerance")
    limits = Limits(budget_of(given, "--"), budget, name, baseline, share)
    raise typer.Exit(check_target(target, options, limits, write_baseline))
