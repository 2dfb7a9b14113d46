"""`mspc run`: trains a script, or executes a compiled program, on all ranks.

Imports nothing heavy at the top: a rank sets its number of BLAS threads before NumPy is loaded.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mspc.commands.mpirun import limit_threads, mpi_rank, mpi_size, run_under_mpirun
from mspc.ir.diagnostics import MspcError

MANY = 1024
"""Stands for the ranks of a simulation whose number the program says: more than any machine has cores."""


def run_script(
    path: Path,
    ranks: int | None = None,
    simulate: bool = False,
    only_rank: int | None = None,
    script_arguments: Sequence[str] = (),
) -> None:
    """Run a training script as `python SCRIPT` would, on all ranks.

    Args:
        ranks: number of ranks; None takes mpirun's, else the script's device_num, else 1.
        simulate: all ranks in this process. only_rank: the one rank whose output is printed.

    Raises:
        MspcError: a mistake, status 2, or a failure of the run, status 1. SystemExit: another status.
    """
    with _said_once():
        if not path.is_file():
            raise MspcError(f"there is no script {str(path)!r}")
        _check_size(ranks, simulate)
    if mpi_size() > 1:
        _run_rank(path, ranks is not None, only_rank, script_arguments)
        return
    wanted = ranks
    if wanted is None:
        wanted = _run_one(path, script_arguments)
        if wanted is None:
            return
    if only_rank is not None and only_rank >= wanted:
        raise MspcError(f"--only-rank {only_rank}: the ranks are 0 to {wanted - 1}")
    if simulate:
        limit_threads(wanted)
        from mspc.commands.simulate import simulate_script
        from mspc.session import alias

        alias.install()
        simulate_script(path, wanted, True, only_rank, script_arguments)
        return
    if wanted == 1:
        _run_rank(path, True, only_rank, script_arguments)
        return
    arguments = ["run", str(path), "--ranks", str(wanted)]
    if only_rank is not None:
        arguments += ["--only-rank", str(only_rank)]
    if script_arguments:
        arguments += ["--", *script_arguments]
    _exit(run_under_mpirun(wanted, arguments))


def run_directory(
    folder: Path,
    data: Path | None = None,
    synthetic: bool = False,
    steps: int | None = None,
    save: Path | None = None,
    save_outputs: Path | None = None,
    simulate: bool = False,
    ranks: int | None = None,
) -> None:
    """Execute a compiled program from its files alone.

    Args:
        data: npz file with global arrays. synthetic: make the arrays up. steps: default 1, or as many as
        the data have.
        save: where the full parameters go after the last step. save_outputs: where the outputs go.

    Raises:
        MspcError: a mistake, status 2, or a failure of the run, status 1.
    """
    with _said_once():
        _check_size(ranks, simulate)
    limit_threads(MANY if simulate else 0)
    from mspc.commands.run_program import Options, check_program, run_rank, simulate_program

    options = Options(folder, data, synthetic, steps, save, save_outputs)
    if mpi_size() > 1:
        from mspc.commands.job import join_job
        from mspc.commands.run_program import read_ahead

        ahead = read_ahead(folder, mpi_rank())
        job = join_job()
        _exit(job.guard(lambda: run_rank(options, job, check_program(options, job.size), ahead)))
        return
    program = check_program(options, ranks)
    if program.ranks == 1:
        from mspc.commands.job import join_job

        run_rank(options, join_job(), program)
        return
    if simulate:
        simulate_program(options, program)
        return
    arguments = ["run", str(folder)]
    for flag, value in (
        ("--data", data),
        ("--steps", steps),
        ("--save", save),
        ("--save-outputs", save_outputs),
    ):
        if value is not None:
            arguments += [flag, str(value)]
    if synthetic:
        arguments.append("--synthetic")
    _exit(run_under_mpirun(program.ranks, arguments))


@contextlib.contextmanager
def _said_once() -> Iterator[None]:
    """Around what every rank checks before it joins the job: rank 0 alone reports a mistake, the others
    end later."""
    try:
        yield
    except MspcError as error:
        if mpi_rank() == 0:
            raise
        time.sleep(1)
        raise SystemExit(error.exit_status) from None


def _check_size(ranks: int | None, simulate: bool) -> None:
    size = mpi_size()
    if size > 1 and simulate:
        raise MspcError(
            f"--simulate runs all ranks in one process, but mpirun started {size}",
            notes=["leave one of the two out"],
        )
    if size and ranks is not None and ranks != size:
        raise MspcError(
            f"--ranks {ranks}, but mpirun started {size} rank{'s' if size > 1 else ''}",
            notes=[f"use mpirun -n {ranks}, or leave --ranks out"],
        )


def _run_rank(path: Path, ranks_given: bool, only_rank: int | None, arguments: Sequence[str]) -> None:
    """Run the script as one rank of mpirun's job, or as the only rank there is."""
    limit_threads()
    from mspc.commands.job import join_job

    job = join_job()
    if only_rank is not None and only_rank >= job.size:
        raise MspcError(f"--only-rank {only_rank}: the ranks are 0 to {job.size - 1}")

    def body() -> None:
        _prepare(job, path, ranks_given)
        if only_rank is not None and only_rank != job.rank:
            from mspc.commands.user_state import Nowhere

            sys.stdout = Nowhere()  # type: ignore[assignment]  # takes text and drops it
        from mspc.commands.script import run_script_as

        run_script_as("__main__", path, arguments)

    if job.size == 1:
        body()
        return
    _exit(job.guard(body))


def _run_one(path: Path, arguments: Sequence[str]) -> int | None:
    """Run the script on one rank; where it turns out to want more, return their number instead.

    What the script prints before its first step is held back until that is known.
    """
    from mspc.commands.job import join_job
    from mspc.commands.launcher import RanksWanted
    from mspc.commands.script import run_script_as
    from mspc.commands.user_state import HeldBack

    held = HeldBack(sys.stdout)
    launcher = _prepare(join_job(), path, False)
    launcher.on_first_compile = held.release
    ordinary, sys.stdout = sys.stdout, held  # type: ignore[assignment]  # a text stream
    try:
        run_script_as("__main__", path, arguments)
    except RanksWanted as wanted:
        held.drop()
        return wanted.ranks
    finally:
        held.release()
        sys.stdout = ordinary
    return None


def _prepare(job: Any, path: Path, ranks_given: bool) -> Any:
    from mspc.commands.launcher import Launcher
    from mspc.session import alias, launch, state

    alias.install()
    state.swap(state.Session.of_rank(job.rank, job.size))
    launcher = Launcher(job, ranks_given, str(path.resolve().parent))
    launch.install(launcher)
    return launcher


def _exit(status: int) -> None:
    if status:
        raise SystemExit(status)
