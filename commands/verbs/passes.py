"""Options of `mspc passes`. Imports the command's work when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from mspc.commands import options as opts


def passes(
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="Only passes of a parallel mode, as data_parallel.", show_default=False),
    ] = None,
    device: Annotated[
        opts.DeviceOption | None, typer.Option(help="Only passes for one device.", show_default=False)
    ] = None,
    json: opts.JsonFile = None,
) -> None:
    """List the passes of a compile in order."""
    from mspc.commands.passes import list_passes

    list_passes(mode, device, json)
