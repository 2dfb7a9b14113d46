"""This module declares the options of `mspc ckpt show | diff | merge | transform | check`. Each imports its work when
it is called."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="ckpt",
    add_completion=False,
    help="Look at checkpoints, compare, merge, transform and check them.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """Values of `--format`."""

    SAFETENSORS = "safetensors"
    CKPT = "ckpt"


Checkpoint = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT", help="A file, the folder or index of a set, or a folder with rank_0, rank_1, ..."
    ),
]
Strategy = Annotated[
    Path | None,
    typer.Option("--strategy", metavar="FILE", help="The strategy file of files that do not know their places."),
]
JsonFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON; - is stdout.")]
Formats = Annotated[Format, typer.Option("--format", help="Format of the files: ckpt is MindSpore's.")]


@app.command(short_help="List the tensors of a checkpoint, and how far its run was.")
def show(checkpoint: Checkpoint, strategy: Strategy = None, json: JsonFile = None) -> None:
    """List the tensors of a checkpoint: types, how they are sharded, bytes; and how far its run was."""
    from mspc.commands.checkpoints import show_checkpoint

    show_checkpoint(checkpoint, strategy, json)


@app.command(short_help="Compare two checkpoints; status 1 if they differ.")
def diff(
    checkpoint: Checkpoint,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="The checkpoint to compare with.")],
    strategy: Strategy = None,
    other_strategy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The strategy file of the other checkpoint.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Compare the tensors of two checkpoints, whatever strategies wrote them; status 1 if they differ."""
    from mspc.commands.checkpoints import diff_checkpoints

    raise typer.Exit(diff_checkpoints((checkpoint, other), (strategy, other_strategy), json))


@app.command(short_help="Write a checkpoint as one file of global tensors.")
def merge(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Output file: .safetensors or .ckpt.")],
    strategy: Strategy = None,
    json: JsonFile = None,
) -> None:
    """Write a checkpoint as one file of global tensors, one tensor in memory at a time."""
    from mspc.commands.checkpoints import merge_checkpoint

    merge_checkpoint(checkpoint, out, strategy, json)


@app.command(short_help="Write a checkpoint as another strategy shards it.")
def transform(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that gets rank_0, rank_1, ...")],
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The strategy file; without one for one rank.")
    ] = None,
    strategy: Strategy = None,
    prefix: Annotated[str, typer.Option(help="Prefix of file names, before the rank.")] = "CKP",
    format: Formats = Format.SAFETENSORS,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Ranks that are written at a time.")] = 1,
    json: JsonFile = None,
) -> None:
    """Write a checkpoint as another strategy shards it, for MindSpore or for mspc, which itself reads any as it is."""
    from mspc.commands.checkpoints import transform_checkpoint

    transform_checkpoint(checkpoint, out, strategy, to, prefix, str(format), processes, json)


@app.command(short_help="Read everything and compare checksums; status 1 if something is damaged.")
def check(checkpoint: Checkpoint, strategy: Strategy = None, json: JsonFile = None) -> None:
    """Read everything and compare checksums; status 1 if something is damaged."""
    from mspc.commands.checkpoints import check_checkpoint

    raise typer.Exit(check_checkpoint(checkpoint, strategy, json))
