"""This module declares the options of `mspc ops`. It imports its work when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from mspc.commands.completion import complete_operator
from mspc.commands.options import JsonFile


def ops(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Only these operators.", show_default=False, autocompletion=complete_operator
        ),
    ] = None,
    json: JsonFile = None,
) -> None:
    """List the operators: their sharding rules, attributes and gradients."""
    from mspc.commands.ops import list_operators

    list_operators(tuple(names or ()), json)
