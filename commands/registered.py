"""Which of the registered commands a start prepares: to read what one of them takes needs as long as a short one runs.
"""

from __future__ import annotations

import typer


def leave_out_all_but(app: typer.Typer, name: str) -> None:
    """Forget the other commands where there is one of this name."""
    named = [info for info in app.registered_commands if name in (info.name, getattr(info.callback, "__name__", ""))]
    groups = [info for info in app.registered_groups if info.name == name]
    if named or groups:
        app.registered_commands, app.registered_groups = named, groups


def keep_names(app: typer.Typer) -> None:
    """Forget what the commands take: a list of them needs their names and one line each."""
    for info in app.registered_commands:
        info.name = info.name or getattr(info.callback, "__name__", None)
        info.callback = _take_nothing
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.typer_instance.registered_commands.clear()


def _take_nothing() -> None:
    """Stands for a command that is listed, not run."""
