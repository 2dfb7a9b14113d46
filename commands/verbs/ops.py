"""This module declares the options of `mspc ops`. It imports its work when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from mspc.commands import options as opts
from mspc.commands.completion import complete_operator


def ops(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Only these operators.", show_default=False, autocompletion=complete_operator
        ),
    ] = None,
    json: opts.JsonFile = None,
) -> None:
    """List the operators: their sharding rules, attributes and gradients."""
    from mspc.commands.ops import list_operators

    list_operators(tuple(names or ()), json)
