"""Time from the ranks being up (MPI initialised) to the first step of `mspc run DIR`; with --starts the CPU time
(user and system, the least of several runs) of a compile, of `mspc --help` and of `import mspc`, beside that of NumPy
and typer.

    python benchmarks/start_up.py [--ranks N] [--script FILE] [--starts RUNS] [-- ARGUMENTS]

Compiles the script, starts the compiled program under mpirun with made-up inputs, and prints the slowest rank's time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment

QUICK_START = Path(__file__).resolve().parent.parent / "samples" / "quickstart" / "net.py"
RANK = """
import sys, time
start = time.perf_counter()
from mspc.engine import job
from mspc.runtime.executor import Executor
join, run, up = job.join_job, Executor.run, []
def joined(*arguments):
    found = join(*arguments)
    up.append(time.perf_counter())
    return found
def timed(self, *arguments):
    if self.step == 0:
        now = time.perf_counter()
        print(f"first step {now - up[0]:.3f} {now - start:.3f}", file=sys.stderr, flush=True)
    return run(self, *arguments)
job.join_job, Executor.run = joined, timed
from mspc.cli import main
main()
"""


def print_starts(script: Path, ranks: str, runs: int) -> None:
    """Print what starts cost, runs of all kinds in turn. Bytecode is in place from a run that does not count."""
    with tempfile.TemporaryDirectory() as folder:
        compiling = ["-m", "mspc", "compile", str(script), "--ranks", ranks, "--save-graphs", "--out", f"{folder}/out"]
        starts = {
            "compile": compiling, "mspc --help": ["-m", "mspc", "--help"], "import mspc": ["-c", "import mspc"],
            "import numpy, typer": ["-c", "import numpy, typer"],
        }  # fmt: skip
        found: dict[str, list[float]] = {name: [] for name in starts}
        for _ in range(runs + 1):
            for name, arguments in starts.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                found[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    for name, seconds in found.items():
        print(f"{name}: {min(seconds[1:]):.3f} s of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--script", type=Path, default=QUICK_START)
    parser.add_argument("--starts", type=int, default=0, metavar="RUNS", help="measure starts instead")
    parser.add_argument("arguments", nargs="*", help="of the script")
    options = parser.parse_args()
    ranks = str(options.ranks)
    if options.starts:
        print_starts(options.script, ranks, options.starts)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out")
        command = [sys.executable, "-m", "mspc", "compile", str(options.script), "--ranks", ranks, "--out", out]
        command += ["--", *options.arguments]
        compiled = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        if compiled.returncode:
            sys.exit(compiled.returncode)
        rank = [sys.executable, "-c", RANK, "run", out, "--synthetic", "--steps", "1"]
        started = subprocess.run(
            [find_mpirun(), "-n", ranks, "--oversubscribe", "--bind-to", "none", *rank],
            env=mpirun_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
    if started.returncode:
        sys.exit(f"{started.stderr}\nmpirun ended with status {started.returncode}")
    lines = [line.split() for line in started.stderr.splitlines() if line.startswith("first step")]
    after_mpi, after_python = (max(float(line[i]) for line in lines) for i in (2, 3))
    print(
        f"{options.script.name}, {ranks} ranks, the slowest: first step {after_mpi:.2f} s after MPI is up, "
        f"{after_python:.2f} s after Python started"
    )


if __name__ == "__main__":
    main()
