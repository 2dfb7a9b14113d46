"""The command line is `mspc COMMAND`, with the commands that `commands.verbs.table` names. A command is loaded when
called.

Nothing here may import NumPy: `mspc --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from mspc import __version__
from mspc.commands import options
from mspc.commands.report.streams import complain, complain_of, run_guarded
from mspc.commands.verbs.table import VERBS, Verb
from mspc.engine.garbage import collect_rarely
from mspc.ir.diagnostics import MspcError

FAILED = 1
"""Exit status where a disk is full, or another thing of the system does not do what it should."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
CONSOLE = object()
"""The object of the commands' context where the process is there for them."""


def loaded(verb: Verb) -> Any:
    """A command with its options."""
    module = verb.module()
    app: typer.Typer | None = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
        function = getattr(module, verb.name.replace("-", "_"), None) or getattr(module, f"{verb.name}_")
        app.command(verb.name, short_help=verb.help, context_settings=dict(verb.settings))(function)
    command = get_command(app)
    options.check_outputs(command)
    return command


class Guarded(TyperGroup):
    """Turns errors of all commands into text on stderr and an exit status; a mistake shows no traceback.

    A process that is there for a command which runs a script up to its first launch does not wait for threads that the
    script has started; where the commands are called by another program, its threads are none of their business.
    """

    _waits = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for verb in VERBS:
            self.commands[verb.name] = TyperCommand(verb.name, short_help=verb.help, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name is loaded; the others are their names and their lines of help."""
        verb = next((verb for verb in VERBS if args and verb.name == args[0]), None)
        if verb is not None:
            self.commands[verb.name] = loaded(verb)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except SystemExit as end:
            others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
            if self._waits or not others or kwargs.get("obj") is not CONSOLE:
                raise
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MspcError as error:
            complain_of(error)
            raise typer.Exit(error.exit_status) from None
        except OSError as error:
            if error.filename is None:  # of a stream: `run_guarded` tells
                raise
            complain(f"error: cannot use {error.filename}: {error.strerror or error}")
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            options.suggest_option(error)
            raise
        finally:
            self._waits = ctx.invoked_subcommand == "run"


app = typer.Typer(
    name="mspc",
    cls=Guarded,
    help="Compile a network in MindSpore's Python style for many ranks, read each rank's program, run it.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mspc {__version__}")
        raise typer.Exit


@app.callback()
def _mspc(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] != ["run"]:  # there the script continues, whose garbage may hold arrays
        collect_rarely()
    raise SystemExit(run_guarded(lambda: app(prog_name="mspc", obj=CONSOLE)))
