"""This module declares the options of `mspc calibrate`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts


def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the rates go (TOML).")],
    ranks: opts.Ranks = None,
    device: Annotated[
        opts.DeviceOption, typer.Option(help="What is measured; auto: GPUs where there are enough.")
    ] = opts.DeviceOption.AUTO,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the machine is called [the file's name].")] = "",
    tf32: Annotated[bool, typer.Option("--tf32", help="Needless: Float32 is timed as it is and rounded.")] = False,
    time_limit: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="After so long only products are begun; 0: no limit.")
    ] = 0,
    quiet: opts.Quiet = False,
) -> None:
    """Time operators and collectives in several sizes, under mpirun or with --ranks N, and write a machine file."""
    from mspc.commands.calibrate import CalibrateOptions, calibrate_machine
    from mspc.runtime.device_choice import Wishes

    seconds = opts.check_seconds("--time-limit", time_limit)
    options = CalibrateOptions(out, ranks, name, Wishes(str(device)), seconds, quiet)
    raise typer.Exit(calibrate_machine(options))
