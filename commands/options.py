"""These options belong to several commands. The module imports nothing heavy."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mspc.commands.completion import complete_input, complete_script
from mspc.ir.text.limits import MOST_RANKS

Ranks = Annotated[
    int | None, typer.Option("--ranks", "-n", min=1, max=MOST_RANKS, metavar="N", help="Number of ranks.")
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A script, a network in it: 'net.py:Net(32, 16)', or model.pt2.",
        autocompletion=complete_script,
    ),
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


_RANKS = ("ranks", "worker_num")
"""Parameters of commands that say how many ranks there are."""
_WORDS_FOR_RANKS = frozenset((
    "rank", "ranks", "nranks", "numranks", "np", "nproc", "nprocs", "nprocpernode", "processes", "world", "worldsize",
    "workers", "workernum", "numworkers", "device", "devices", "devicenum", "numdevices", "ndevices", "gpus", "numgpus",
    "ngpus",
))  # fmt: skip
"""What other launchers and MindSpore call the number of ranks, without dashes."""


def suggest_option(error: Any) -> None:
    """Add to the error of an option that a command lacks the one that was meant, where its name alone does not tell:
    names for a number of ranks are unlike each other."""
    word = re.sub(r"[-_]", "", getattr(error, "option_name", None) or "").casefold()
    if word not in _WORDS_FOR_RANKS or not hasattr(error, "possibilities") or error.ctx is None:
        return
    meant = [parameter.opts[0] for parameter in error.ctx.command.params if parameter.name in _RANKS]
    if meant:
        error.possibilities = meant


class DeviceOption(StrEnum):
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
AllRows = Annotated[bool, typer.Option("--all", help="Print every row, not a summary that fits a screen.")]
