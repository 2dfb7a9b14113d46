"""Options that several commands have. Imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mspc.commands.completion import complete_input
from mspc.ir.text.limits import MOST_RANKS

Ranks = Annotated[
    int | None, typer.Option("--ranks", "-n", min=1, max=MOST_RANKS, metavar="N", help="Number of ranks.")
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", show_default=False, help="The script's own arguments."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="SPEC", help="An input of a named network: 'float32[16,32]', global shape.",
        autocompletion=complete_input,
    ),
]


class Device(StrEnum):
    """Values of `--device`."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"


class Judge(StrEnum):
    """Values of `--against`."""

    TORCH = "torch"


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say on stderr what each pass did, and how long it took.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but errors and results: no table, warnings, progress.")
]
JsonFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as JSON; - is stdout.")]
