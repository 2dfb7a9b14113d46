"""The options that the commands which compile a network share. The module imports nothing heavy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mspc.commands import options as opts
from mspc.ir.diagnostics import MspcError
from mspc.ir.text.limits import LARGEST_SIZE, number_of

if TYPE_CHECKING:
    from mspc.commands.compile import CompileOptions as CompileOptions
else:
    CompileOptions = Any  # the parser evaluates annotations before a command loads the compiler


def compile_options(
    script_arguments: opts.ScriptArguments = None,
    ranks: opts.Ranks = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="SPEC", help="An input of a named network: 'float32[16,32]', global shape.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size", metavar="NAME=N", help="A size of model.pt2 that is open: 'x.0=8', of input x; may be repeated."
        ),
    ] = None,
    strategies: opts.StrategiesFile = None,
    json: opts.JsonFile = None,
    all_rows: Annotated[bool, typer.Option("--all", help="Print every row, not a summary that fits a screen.")] = False,
    verbose: opts.Verbose = False,
    quiet: opts.Quiet = False,
    **imported: Any,
) -> CompileOptions:
    """Return the options of a command line; imported: fields of `ImportOptions`. Raise MspcError if one is invalid."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.verbosity import Loudness

    return CompileOptions(
        ranks=ranks, inputs=tuple(input_ or ()), json=json, script_arguments=tuple(script_arguments or ()),
        strategies=strategies, loudness=Loudness(verbose, quiet), all_rows=all_rows,
        imported=opts.ImportOptions(sizes=_sizes(size or ()), **imported),
    )  # fmt: skip


def _sizes(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for text in texts:
        name, _, digits = text.partition("=")
        number = number_of(digits, LARGEST_SIZE)
        if not name.strip() or number is None:
            raise MspcError(f"cannot read --size {text!r:.60}", notes=["write the size and a number: x.0=8"])
        if found.setdefault(name.strip(), number) != number:
            raise MspcError(f"--size gives {name.strip():.60} two numbers")
    return tuple(found.items())


def has_compile_options(**after: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of commands that adds parameters of `compile_options` and `ImportOptions` to the signature.

    The command is called with the `CompileOptions` of these parameters first, and then with its own parameters by name.
    after: an own parameter each, and the names of the parameters that follow it in the signature, and so in `--help`,
    separated by spaces.
    """
    shared = dict(inspect.signature(compile_options, eval_str=True).parameters)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    types = inspect.get_annotations(opts.ImportOptions, eval_str=True)
    for each in fields(opts.ImportOptions):
        shared[each.name] = inspect.Parameter(each.name, kind, default=each.default, annotation=types[each.name])
    added = " ".join(after.values()).split()

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        followed = [(each, *(shared[name] for name in after.get(each.name, "").split())) for each in own]
        listed = [parameter for several in followed for parameter in several]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            options = compile_options(**{name: given.pop(name) for name in added})
            command(options, **given)

        called.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
        vars(called)["__signature__"] = inspect.Signature(listed)
        return called

    return decorate
