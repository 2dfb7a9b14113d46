"""Options of `mspc search` only. The module imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands.options import DeviceOption

SeveralRanks = Annotated[
    str | None, typer.Option("--ranks", "-n", metavar="N[,N...]", help="Number of ranks, or several to compare.")
]
MachineName = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="The machine: h200 (the default), h100, a100, or a TOML file.")
]
ProgramDevice = Annotated[
    DeviceOption,
    typer.Option("--device", help="What programs are made for; auto: a named machine's device, else the script's."),
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
    str, typer.Option(metavar="NODE", help="Why an operator is sharded so, and what else there is, instead of plans.")
]
TwoPlans = Annotated[
    tuple[Path, Path] | None, typer.Option(metavar="A B", help="What two plan files differ in, instead of plans.")
]
