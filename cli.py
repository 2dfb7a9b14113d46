"""The command line: `mspc compile | search | calibrate | run | launch | verify | view | diff | check | opt | ops |
doctor | ckpt`. A command imports its work when called.

Nothing here may import NumPy or networkx: `mspc --help` answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mspc import __version__
from mspc.commands import comparing, lists, options
from mspc.commands import launch as launching
from mspc.commands import search_options as searching
from mspc.commands.ckpt import app as checkpoints
from mspc.commands.completion import complete_graph, complete_passes, complete_script
from mspc.commands.options import AllRows, Device, Inputs, JsonFile, Judge, Quiet, Ranks, ScriptArguments, Verbose
from mspc.commands.registered import keep_names, leave_out_all_but
from mspc.commands.report.streams import complain, complain_of, run_guarded
from mspc.commands.view import verb as viewing
from mspc.ir.diagnostics import MspcError

FAILED = 1
"""Exit status where a disk is full, or another thing of the system does not do what it should."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
NEW_OBJECTS = 100_000
"""New objects after which a command looks for garbage among them: nearly all that a compile makes stays until its end,
and to look again after every 700, as Python does, takes a twentieth of it."""
CONSOLE = object()
"""The object of the commands' context where the process is there for them."""


class Guarded(TyperGroup):
    """Turns errors of all commands into text on stderr and an exit status; a mistake shows no traceback.

    A process that is there for a command which runs a script up to its first launch does not wait for threads that the
    script has started; where the commands are called by another program, its threads are none of their business.
    """

    _waits = True

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
    help="Compile a network in MindSpore's Python style for many ranks, read what each rank does, run it.",
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


@app.command("compile", short_help="Compile for all ranks; run nothing.")
def compile_(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A script, or a network in a file: 'net.py:Net(32, 16)'.",
            autocompletion=complete_script,
        ),
    ],
    script_arguments: ScriptArguments = None,
    ranks: Ranks = None,
    save_graphs: Annotated[
        bool, typer.Option("--save-graphs", help="Write the graph after every pass, not the last one alone.")
    ] = False,
    level: Annotated[
        int | None,
        typer.Option(
            min=1, max=3, metavar="N", help="What is written: 1 main stages, 2 every pass (default), 3 .dot files too."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write (default: saved_graph).")] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="R", help="Write this rank only; may be repeated.", show_default=False),
    ] = None,
    input_: Inputs = None,
    json: JsonFile = None,
    strategies: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A plan (of `mspc search --out`) or a strategy file; goes before shard()."),
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Write all initial values, not only arrays that the script brought.")
    ] = False,
    all_rows: AllRows = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Compile the first graph that a script launches, for all ranks; run nothing, need no MPI, no device."""
    from mspc.commands.compile import CompileOptions, compile_target
    from mspc.commands.report.loudness import Loudness

    if gc.get_threshold()[0] == NEW_OBJECTS:  # the process is the command's: no search for garbage, not even that at
        gc.freeze()  # its end, has to look at what is loaded
    compile_target(
        target,
        CompileOptions(
            ranks=ranks,
            level=level or (2 if save_graphs else 0),
            out=out,
            only_ranks=tuple(rank or ()),
            inputs=tuple(input_ or ()),
            json=json,
            script_arguments=tuple(script_arguments or ()),
            weights=weights,
            strategies=strategies,
            loudness=Loudness(verbose, quiet),
            all_rows=all_rows,
        ),
    )


@app.command(short_help="Find the best way to cut a network; run nothing.")
def search(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A script, or a network in a file: 'net.py:Net(32, 16)'.",
            autocompletion=complete_script,
        ),
    ],
    script_arguments: ScriptArguments = None,
    ranks: searching.SeveralRanks = None,
    machine: searching.MachineName = "",
    memory: searching.MemorySize = None,
    mesh: searching.Meshes = None,
    time_limit: searching.TimeLimit = 0,
    explain: searching.Explained = "",
    compare: searching.TwoPlans = None,
    free: Annotated[bool, typer.Option("--free", help="Leave out the strategies that the script gives.")] = False,
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Plans in the table for each number of ranks.")] = 5,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan that was found (TOML), to edit and to compile.")
    ] = None,
    input_: Inputs = None,
    json: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Look for the layouts of all operators at once, and set the plan beside the usual ones."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.loudness import Loudness
    from mspc.commands.search import SearchOptions, memory_of, meshes_of, ranks_of, search_target

    common = CompileOptions(
        inputs=tuple(input_ or ()), json=json, script_arguments=tuple(script_arguments or ()),
        loudness=Loudness(False, quiet),
    )  # fmt: skip
    options = SearchOptions(
        common, ranks_of(ranks), top, free, machine, memory_of(memory), meshes_of(mesh), time_limit,
        explain, compare, out,
    )  # fmt: skip
    search_target(target, options)


@app.command(short_help="Measure this machine, for mspc search.")
def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the rates go (TOML).")],
    ranks: Ranks = None,
    device: Annotated[Device, typer.Option(help="What is measured; auto: GPUs where there are enough.")] = Device.AUTO,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the machine is called [the file's name].")] = "",
    tf32: Annotated[bool, typer.Option("--tf32", help="Let GPUs round products of Float32.")] = False,
    quiet: Quiet = False,
) -> None:
    """Time operators and collectives in several sizes, under mpirun or with --ranks N, and write a machine file."""
    from mspc.commands.calibrate import CalibrateOptions, calibrate_machine
    from mspc.runtime.choose import Wishes

    options = CalibrateOptions(out, ranks, name, Wishes(str(device)), tf32, quiet)
    raise typer.Exit(calibrate_machine(options))


@app.command(short_help="Train a script, or run a compile, on all ranks.")
def run(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="A script, or the folder of a compile.", autocompletion=complete_script
        ),
    ],
    script_arguments: ScriptArguments = None,
    ranks: Ranks = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Run all ranks in this process, without MPI.")
    ] = False,
    only_rank: Annotated[
        int | None, typer.Option(min=0, metavar="R", help="Print what this rank prints, nothing else.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="NPZ", help="Inputs of a compiled program: global arrays by name.")
    ] = None,
    synthetic: Annotated[
        bool,
        typer.Option("--synthetic", help="Make the inputs of a compiled program up: uniform [0, 1), seed 0."),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="S", help="Steps of a compiled program.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the full parameters after the last step (safetensors)."),
    ] = None,
    save_outputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outputs of a compiled program (npz).")
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where to run; auto: as the script says, else on GPUs where there are enough.")
    ] = Device.AUTO,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits at every run, on a GPU too.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long to wait for a rank that is stopped or missing [60]."),
    ] = 0.0,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Time some steps: a trace of all ranks (JSON) and a table of rank 0."),
    ] = None,
    profile_steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The most steps that --profile times [5].")
    ] = None,
) -> None:
    """Train a script, or execute a compiled program: under mpirun, with --ranks N, or with --simulate."""
    from mspc.engine.profile_options import profile_options
    from mspc.runtime.choose import Wishes

    wishes, profiled = Wishes(str(device), deterministic, timeout), profile_options(profile, profile_steps)
    if os.path.isdir(target):
        if script_arguments or only_rank is not None:
            raise MspcError(
                f"{target} is a folder, so a compiled program",
                notes=["script arguments and --only-rank are for scripts"],
            )
        from mspc.commands.run import run_directory

        run_directory(
            target, data=data, synthetic=synthetic, steps=steps, save=save, save_outputs=save_outputs,
            simulate=simulate, ranks=ranks, wishes=wishes, profile=profiled,
        )  # fmt: skip
        return
    if data or synthetic or steps or save or save_outputs:
        raise MspcError(
            f"{target} is no compiled program; --data, --synthetic, --steps and --save... are for these",
            notes=["a compiled program is the folder that `mspc compile` writes"],
        )
    from mspc.commands.run import run_script

    run_script(
        target, ranks=ranks, simulate=simulate, only_rank=only_rank, script_arguments=tuple(script_arguments or ()),
        wishes=wishes, profile=profiled,
    )  # fmt: skip


app.command(
    "launch", short_help="Start a script on many ranks, of several hosts too.",
    context_settings={"allow_interspersed_args": False},
)(launching.launch)  # fmt: skip


app.command(short_help="What two compiles, dumps or plans differ in.")(comparing.diff)
app.command(short_help="Hold a compile to a budget.")(comparing.check)


@app.command(short_help="Compare steps on N ranks with one device.")
def verify(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="As for compile, or its folder.", autocompletion=complete_script)
    ],
    script_arguments: ScriptArguments = None,
    ranks: Ranks = None,
    input_: Inputs = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the data and weights that are compared.")] = 0,
    against: Annotated[
        Judge | None, typer.Option(help="Hold one device against PyTorch instead, operator by operator.")
    ] = None,
    mpi: Annotated[bool, typer.Option("--mpi", help="Run the ranks under mpirun, not in this process.")] = False,
    json: JsonFile = None,
    all_rows: AllRows = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run some steps on one device and on N simulated ranks and compare every output, gradient and parameter."""
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.loudness import Loudness
    from mspc.commands.verify import verify_target

    options = CompileOptions(
        ranks=ranks,
        inputs=tuple(input_ or ()),
        json=json,
        script_arguments=tuple(script_arguments or ()),
        loudness=Loudness(verbose, quiet),
        all_rows=all_rows,
    )
    verify_target(target, options, seed, against is Judge.TORCH, mpi)


app.command("view", short_help="Write a page that shows a compile and why it is so.")(viewing.view)


@app.command(short_help="Read a text graph, run passes, print it.")
def opt(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="An .ir file, MindSpore's too; - is stdin.", autocompletion=complete_graph
        ),
    ],
    passes: Annotated[
        str,
        typer.Option(
            "--passes", "-p", metavar="PASSES", help="For example 'grad,slice_to_rank{rank=3}'.",
            autocompletion=complete_passes,
        ),
    ] = "",
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Read a graph, run passes on it and print it; without passes read and print."""
    from mspc.commands.opt import optimize
    from mspc.commands.report.loudness import Loudness

    print(optimize(file, passes, Loudness(verbose, quiet)), end="")


app.command(short_help="List the operators and their rules.")(lists.ops)
app.command(short_help="List what a script uses that mspc lacks or ignores.")(lists.doctor)
app.add_typer(checkpoints, name="ckpt")


def main() -> None:
    """Run the command that the arguments name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if sys.argv[1:] in ([], ["--help"], ["-h"]):
        keep_names(app)
    else:
        leave_out_all_but(app, name)
    if name != "run":  # there the script goes on, whose garbage may hold arrays
        gc.set_threshold(NEW_OBJECTS)
    raise SystemExit(run_guarded(lambda: app(prog_name="mspc", obj=CONSOLE)))
