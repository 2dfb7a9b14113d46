"""`mspc calibrate` measures the machine on which it runs, and writes its rates into a file.

Imports nothing heavy at the top: a rank sets its number of BLAS threads before NumPy is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mspc.engine.ranks.environment import limit_threads, mpi_rank, mpi_size
from mspc.engine.ranks.mpirun import run_under_mpirun
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.device_choice import Wishes

SUFFIX = ".toml"


@dataclass(frozen=True)
class CalibrateOptions:
    """The flags of `mspc calibrate`. ranks: None for mpirun's number, or 1 without mpirun. name: of the machine.
    seconds: time after which no measurement is started, 0 for no limit."""

    out: Path
    ranks: int | None = None
    name: str = ""
    wishes: Wishes = Wishes()
    seconds: float = 0
    quiet: bool = False


def calibrate_machine(options: CalibrateOptions) -> int:
    """Measure on all ranks; rank 0 writes the file and prints the table. Return the exit status.

    Raises:
        MspcError: the file cannot be written, or a device is not available.
    """
    from mspc.ir.files.atomic_writing import check_writable

    if options.out.suffix != SUFFIX:
        raise MspcError(f"--out {options.out}: a machine's file ends in {SUFFIX}")
    if mpi_rank() == 0:
        check_writable(options.out, "--out")
    if mpi_size() <= 1 and (options.ranks or 1) > 1:
        arguments = ["--out", str(options.out), *options.wishes.arguments()]
        arguments += ["--name", options.name] if options.name else []
        arguments += ["--time-limit", str(options.seconds)] if options.seconds else []
        return run_under_mpirun(options.ranks or 1, ["calibrate", *arguments, *["--quiet"] * options.quiet])
    if options.ranks is not None and mpi_size() > 1 and options.ranks != mpi_size():
        raise MspcError(f"--ranks is {options.ranks}, and mpirun started {mpi_size()} ranks")
    limit_threads(max(1, mpi_size()))
    from mspc.engine.job import join_job

    job = join_job(options.wishes)
    return job.guard(lambda: _measure(options, job))


def _measure(options: CalibrateOptions, job: Any) -> None:
    from mspc.commands.report.verbosity import ProgressLine
    from mspc.search.calibration.machine_file import write_machine
    from mspc.search.calibration.measured import calibrate

    name = options.name or options.out.stem
    with ProgressLine(not options.quiet and job.rank == 0) as progress:
        machine = calibrate(job, name, progress.show, limit=options.seconds)
    if job.rank == 0:
        write_machine(options.out, machine)
        _print(machine, options)
        if machine.doubts:
            _warn(machine, options)


def _print(machine: Any, options: CalibrateOptions) -> None:
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
    print_line(f"the rates are in {options.out}; `mspc search --machine {options.out}` takes them")


def _warn(machine: Any, options: CalibrateOptions) -> None:
    import sys

    from mspc.commands.report.notes import doubts_text

    again = "end what else runs here, give every rank a core of its own, and calibrate again"
    print(doubts_text(f"what was measured for {options.out}", machine.doubts, again), file=sys.stderr)


def _rates(rate: Any, unit: str, of: float) -> str:
    return f"{', '.join(f'{at / of:.3g}' for _, at in rate.points)} {unit}"
