"""`mspc calibrate` measures the machine on which it runs, and writes its rates into a file.

Imports nothing heavy at the top: a rank sets its number of BLAS threads before NumPy is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mspc.commands import options as opts
from mspc.ir.diagnostics import MspcError

SUFFIX = ".toml"


def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the rates go (TOML).")],
    ranks: opts.Ranks = None,
    device: Annotated[
        opts.DeviceOption, typer.Option(help="The device to measure; auto: GPUs if there are enough.")
    ] = opts.DeviceOption.AUTO,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the machine [the file's name].")] = "",
    tf32: Annotated[bool, typer.Option("--tf32", help="Needless: Float32 is timed as it is and rounded.")] = False,
    time_limit: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="After so long only products are begun; 0: no limit.")
    ] = 0,
    quiet: opts.Quiet = False,
) -> None:
    """Time operators and collectives in several sizes, under mpirun or with --ranks N, and write a machine file."""
    from mspc.engine.ranks.environment import limit_threads, mpi_rank, mpi_size
    from mspc.engine.ranks.launcher import run_under_mpirun
    from mspc.ir.files.atomic_writing import check_writable
    from mspc.runtime.device_choice import DeviceOptions

    seconds, wishes = opts.check_seconds("--time-limit", time_limit), DeviceOptions(str(device))
    if out.suffix != SUFFIX:
        raise MspcError(f"--out {out}: a machine's file ends in {SUFFIX}", code="E0109")
    if mpi_rank() == 0:
        check_writable(out, "--out")
    if mpi_size() <= 1 and (ranks or 1) > 1:
        arguments = ["--out", str(out), *wishes.arguments()]
        arguments += ["--name", name] if name else []
        arguments += ["--time-limit", str(seconds)] if seconds else []
        raise typer.Exit(run_under_mpirun(ranks or 1, ["calibrate", *arguments, *["--quiet"] * quiet]))
    if ranks is not None and mpi_size() > 1 and ranks != mpi_size():
        raise MspcError(f"--ranks is {ranks}, and mpirun started {mpi_size()} ranks", code="E0117")
    limit_threads(max(1, mpi_size()))
    from mspc.engine.job import join_job

    job = join_job(wishes)
    raise typer.Exit(job.guard(lambda: _measure(job, out, name or out.stem, seconds, quiet)))


def _measure(job: Any, out: Path, name: str, seconds: float, quiet: bool) -> None:
    from mspc.commands.report.plan_summary import doubts_text
    from mspc.commands.report.verbosity import ProgressLine
    from mspc.search.calibration.machine_file import write_machine
    from mspc.search.calibration.measured import calibrate as measured

    with ProgressLine(not quiet and job.rank == 0) as progress:
        machine = measured(job, name, progress.show, limit=seconds)
    if job.rank == 0:
        write_machine(out, machine)
        _print(machine, out)
        if machine.doubts:
            again = "stop other programs, give every rank a core of its own, and calibrate again"
            print(doubts_text(f"what was measured for {out}", machine.doubts, again), file=sys.stderr)


def _print(machine: Any, out: Path) -> None:
    from mspc.commands.report.tables import TextTable, print_line, print_table, time_text

    rows = [("small operator", "", time_text(machine.kernel)), ("memory", "", _rates(machine.memory, "GB/s", 1e9))]
    for kind, rates in machine.work.items():
        rows += [(kind, dtype, _rates(rate, "GFLOP/s", 1e9)) for dtype, rate in rates.items()]
    rows += [(kind.replace("_", " "), "", _rates(rate, "GB/s", 1e9)) for kind, rate in machine.traffic.items()]
    for name, link in (("link", machine.link), ("network", machine.network)):
        for operator, own in {"AllReduce": link, **link.own}.items() if link is not None else ():
            rows.append((name, operator, f"{time_text(own.latency)}, {_rates(own.bandwidth, 'GB/s', 1e9)}"))
    print_table(
        TextTable(f"{machine.name}: {machine.source}", ("what", "of", "from the smallest to the largest"), rows)
    )
    print_line(f"the rates are in {out}; `mspc search --machine {out}` takes them")


def _rates(rate: Any, unit: str, of: float) -> str:
    return f"{', '.join(f'{at / of:.3g}' for _, at in rate.points)} {unit}"
