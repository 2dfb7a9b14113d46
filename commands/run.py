"""`mspc run` trains a script, or executes a compiled program, on all ranks.

Imports nothing heavy at the top: a rank sets its number of BLAS threads before NumPy is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from mspc.commands.options import EXPORTED
from mspc.engine.profile_options import ProfileOptions
from mspc.engine.ranks.environment import limit_threads, mpi_rank, mpi_size
from mspc.engine.ranks.launcher import run_under_mpirun
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_files
from mspc.runtime.device_choice import DeviceOptions

AS_FOUND = DeviceOptions()
MANY = 1024
"""Placeholder for the number of ranks of a simulation, which only the program knows: more than a machine has cores."""


def run_script(
    path: Path, ranks: int | None = None, simulate: bool = False, only_rank: int | None = None,
    script_arguments: Sequence[str] = (), wishes: DeviceOptions = AS_FOUND, profile: ProfileOptions | None = None,
    strategies: Path | None = None,
) -> None:  # fmt: skip
    """Run a training script as `python SCRIPT` would, on all ranks. Raise MspcError for an error of the user, status 2,
    or a failure of the run, status 1; SystemExit for another status.

    ranks: number of ranks; None for that of mpirun, else the script's device_num, else 1. simulate: all ranks in this
    process. only_rank: the one rank whose output is printed. wishes: options for devices. profile: options for timing.
    strategies: a plan or strategy file by which operators are sharded.
    """
    with _said_once():
        if not os.path.isfile(path):
            wanted = "script" if path.suffix == ".py" else "script or folder of a compile"
            raise MspcError(f"there is no {wanted} {str(path)!r}", code="E0101")
        if path.suffix == EXPORTED:
            notes = [f"mspc compile {path} --ranks 8 --out DIR, and then mspc run DIR"]
            raise MspcError(f"{path} is a network of PyTorch, which is compiled before it is run", notes=notes)
        if strategies is not None and not os.path.isfile(strategies):
            raise MspcError(f"there is no strategy file {str(strategies)!r}", notes=["mspc search --out writes one"])
        _check(ranks, simulate, profile)
    strategies = strategies and strategies.resolve()  # a script may change its folder
    if mpi_size() > 1:
        _run_rank(path, ranks is not None, only_rank, script_arguments, wishes, profile, strategies)
        return
    wanted = ranks
    if wanted is None:
        wanted = _run_one(path, script_arguments, wishes, simulate, profile, strategies)
        if wanted is None:
            return
    if only_rank is not None and only_rank >= wanted:
        raise MspcError(f"--only-rank {only_rank}: the ranks are 0 to {wanted - 1}")
    if simulate:
        limit_threads(wanted)
        from mspc.engine.simulate import simulate_script
        from mspc.mindspore_api import alias

        alias.install()
        simulate_script(path, wanted, only_rank, script_arguments, wishes, _profilers(profile), strategies)
        return
    if wanted == 1:
        _run_rank(path, True, only_rank, script_arguments, wishes, profile, strategies)
        return
    arguments = ["run", str(path), "--ranks", str(wanted), *wishes.arguments()]
    if profile is not None:
        arguments += profile.arguments()
    if strategies is not None:
        arguments += ["--strategies", str(strategies)]
    if only_rank is not None:
        arguments += ["--only-rank", str(only_rank)]
    if script_arguments:
        arguments += ["--", *script_arguments]
    _exit(run_under_mpirun(wanted, arguments))


def run_directory(
    folder: Path, data: Path | None = None, synthetic: bool = False, steps: int | None = None,
    save: Path | None = None, save_outputs: Path | None = None, simulate: bool = False, ranks: int | None = None,
    wishes: DeviceOptions = AS_FOUND, profile: ProfileOptions | None = None,
) -> None:  # fmt: skip
    """Execute a compiled program from its files alone. Raise MspcError for an error of the user, status 2, or a failure
    of the run, status 1.

    data: npz file with global arrays. synthetic: generate the arrays. steps: default 1, or the number in the data.
    save: file for the full parameters after the last step. save_outputs: file for the outputs. wishes: options for
    devices. profile: options for timing.
    """
    with _said_once():
        _check(ranks, simulate, profile)
        check_files({"--save": save, "--save-outputs": save_outputs, "--profile": profile and profile.file})
    limit_threads(MANY if simulate else 0)
    from mspc.engine.run_program import Options, check_program, run_rank, simulate_program

    options = Options(folder, data, synthetic, steps, save, save_outputs)
    if mpi_size() > 1:
        from mspc.engine.run_program import read_graph_early

        ahead = read_graph_early(folder, mpi_rank(), frames=profile is not None)
        job = _join(wishes, profile)
        _exit(job.guard(lambda: run_rank(options, job, check_program(options, job.size), ahead)))
        return
    program = check_program(options, ranks)
    if program.ranks == 1:
        run_rank(options, _simulated(wishes, profile) if simulate else _join(wishes, profile), program)
        return
    if simulate:
        simulate_program(options, program, wishes, _profilers(profile))
        return
    arguments = ["run", str(folder), *wishes.arguments(), *(profile.arguments() if profile is not None else ())]
    for flag, value in (("--data", data), ("--steps", steps), ("--save", save), ("--save-outputs", save_outputs)):
        if value is not None:
            arguments += [flag, str(value)]
    if synthetic:
        arguments.append("--synthetic")
    _exit(run_under_mpirun(program.ranks, arguments))


@contextlib.contextmanager
def _said_once() -> Generator[None]:
    """Wrap the checks of every rank before it joins the job: only rank 0 raises the MspcError; the others exit one
    second later with its status."""
    try:
        yield
    except MspcError as error:
        if mpi_rank() == 0:
            raise
        time.sleep(1)
        raise SystemExit(error.exit_status) from None


def _check(ranks: int | None, simulate: bool, profile: ProfileOptions | None) -> None:
    if profile is not None:
        profile.check()
    size = mpi_size()
    if size > 1 and simulate:
        raise MspcError(
            f"--simulate runs all ranks in one process, but mpirun started {size}",
            notes=["leave one of the two out"], code="E0117",
        )
    if size and ranks is not None and ranks != size:
        raise MspcError(
            f"--ranks {ranks}, but mpirun started {size} rank{'s' if size > 1 else ''}",
            notes=[f"use mpirun -n {ranks}, or leave --ranks out"], code="E0117",
        )


def _run_rank(
    path: Path, ranks_given: bool, only_rank: int | None, arguments: Sequence[str], wishes: DeviceOptions,
    profile: ProfileOptions | None, strategies: Path | None,
) -> None:  # fmt: skip
    """Run the script as one rank of mpirun's job, or as the only rank there is."""
    limit_threads()
    job = _join(wishes, profile)
    if only_rank is not None and only_rank >= job.size:
        raise MspcError(f"--only-rank {only_rank}: the ranks are 0 to {job.size - 1}")

    def body() -> None:
        _prepare(job, path, ranks_given, strategies)
        if only_rank is not None and only_rank != job.rank:
            from mspc.engine.simulate import DiscardedOutput

            sys.stdout = DiscardedOutput()  # type: ignore[assignment]  # takes text and drops it
        _run_to_its_end(path, arguments, job)

    if job.size == 1:
        body()
        return
    _exit(job.guard(body))


def _run_to_its_end(path: Path, arguments: Sequence[str], job: Any) -> None:
    """Run the script, and the final work of the job if it ends without failure, even by sys.exit()."""
    from mspc.engine.script import run_script_as

    ended: SystemExit | None = None
    try:
        run_script_as("__main__", path, arguments)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
        ended = stop
    job.hardware.memory.finish()
    if job.profile is not None:
        job.profile.end(job)
    if ended is not None:
        raise ended


def _run_one(
    path: Path, arguments: Sequence[str], wishes: DeviceOptions, simulate: bool, profile: ProfileOptions | None,
    strategies: Path | None,
) -> int | None:  # fmt: skip
    """Run the script on one rank and return None; return the number of ranks if the script requests more than one.

    Output and warnings before its first step are held back until the number of ranks is known.
    """
    from mspc.engine.calls import RanksWanted
    from mspc.engine.simulate import BufferedOutput

    held, warned = BufferedOutput(sys.stdout), BufferedOutput(sys.stderr)
    job = _simulated(wishes, profile) if simulate else _join(wishes, profile)
    handler = _prepare(job, path, False, strategies)

    def release() -> None:
        held.release()
        warned.release()

    handler.on_first_compile = release
    ordinary = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = held, warned  # type: ignore[assignment]  # text streams
    try:
        _run_to_its_end(path, arguments, job)
    except RanksWanted as wanted:
        held.drop()
        warned.drop()
        return wanted.ranks
    finally:
        release()
        sys.stdout, sys.stderr = ordinary
    return None


def _join(wishes: DeviceOptions, profile: ProfileOptions | None) -> Any:
    from mspc.engine.job import join_job

    job = join_job(wishes)
    job.profile = _profilers(profile)()
    return job


def _profilers(profile: ProfileOptions | None) -> Callable[[], Any]:
    """Return a function that makes the profiler of a rank, None without profiling; it prints to the current stdout."""
    out = sys.stdout

    def make() -> Any:
        if profile is None:
            return None
        from mspc.commands.report.profile import show_profile
        from mspc.engine.profile import StepProfiler

        return StepProfiler(profile, out, show_profile)

    return make


def _simulated(wishes: DeviceOptions, profile: ProfileOptions | None) -> Any:
    """Return the job of the only rank of a simulation."""
    from mspc.engine.job import Job
    from mspc.engine.simulate import simulated_hardware
    from mspc.ops.collective.one_rank import OneRank

    return Job(OneRank(), OneRank(), None, simulated_hardware(wishes, 0), _profilers(profile)())


def _prepare(job: Any, path: Path, ranks_given: bool, strategies: Path | None) -> Any:
    from mspc.engine.calls import RankCalls
    from mspc.mindspore_api import alias, call_handler, state

    alias.install()
    session = state.Session.of_rank(job.rank, job.size)
    if job.size == 1 and not ranks_given:
        session.claimed = state.Session.from_environment().claimed
    state.swap(session)
    handler = RankCalls(job, ranks_given, str(path.resolve().parent), strategies)
    call_handler.install(handler)
    return handler


def _exit(status: int) -> None:
    if status:
        raise SystemExit(status)
