"""Whether a step of uneven stages takes as long as the timeline of its schedule says, on ranks of this machine's CPU.

    python -m benchmarks.pipelines.predicted [--ranks 4] [--layers 1,3,2,2] [--micro-batches 8] [--machine here.toml]

The timeline is given what nodes take, and what a message takes between two ranks; it knows nothing of when a rank
waited. What nodes take is measured twice: `alone`, in one process, stage after stage (simulated ranks), and `together`,
in a run of its own on as many ranks (`mspc run --profile`), which take memory's bandwidth and caches from each other as
they will in the run that is predicted; `--times-of SCHEDULE` takes them from a run by another schedule with actions of
the same kinds. Then as many ranks run under MPI, each on one thread, and a step is measured, from the first rank's
begin to the last one's end. All are medians of steps in which the ranks had their cores nearly all the time; a run of
`--steps` steps that has too few of these is repeated. With `--machine`, a file of `mspc calibrate`, a column has what
its rates predict. The status is 1 where a prediction by the times of ranks together is more than 10 % off. Needs as
many cores as ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # before NumPy is loaded, here and in the ranks
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

from benchmarks.pipelines.node_times import NodeTimes, graphs_of, steps_of, steps_of_trace
from mspc.api import alias
from mspc.engine.profile import Gathered, StepProfiler
from mspc.engine.profile_options import ProfileOptions
from mspc.engine.ranks.mpirun import mpirun_command, mpirun_environment
from mspc.engine.simulate import simulate_script
from mspc.ir.graph import Graph
from mspc.output.stage_times import stage_times

SCRIPT = Path(__file__).with_name("uneven_network.py")
SCHEDULES = ("gpipe", "1f1b", "zero_bubble_h1", "interleaved")
ALLOWED = 0.10
WARM = 2
"""Steps that prepare."""
OWN_CORE, ENOUGH, TRIES = 0.95, 5, 6
"""The part of a step in which a rank has a core at least, how many such steps are wanted, and the most runs for them.
A rank that waits in MPI has its core, too."""
WORKS = 0.02
"""Seconds that a rank computes behind a message whose time is measured."""
MESSAGE = """
import sys, time
import numpy as np
from mspc.runtime.comm.mpi import MpiComm
comm, array = MpiComm(), np.ones(int(sys.argv[1]), np.uint8)
times = []
for _ in range(51):
    comm.barrier(tuple(range(comm.size)))
    begin = time.perf_counter()
    if comm.rank == 0:
        comm.send(array, 1, 1)
        while time.perf_counter() < begin + float(sys.argv[2]):
            pass
    if comm.rank == 1:
        comm.receive(0, 1, array.shape, array.dtype)
        times.append(time.perf_counter() - begin)
if comm.rank == 1:
    print("seconds", sorted(times)[len(times) // 2])
comm.finalize()
"""


@dataclass(frozen=True)
class Case:
    """A network in stages. layers: of every stage. steps: that are measured. Sizes: see uneven_network.py."""

    layers: tuple[int, ...]
    micro_batches: int
    width: int
    rows: int
    steps: int

    @property
    def ranks(self) -> int:
        return len(self.layers)

    def arguments(self, folder: Path, schedule: str) -> list[str]:
        """What the script is given."""
        layers = [each // 2 for each in self.layers] if schedule == "interleaved" else self.layers
        sizes = (self.micro_batches, self.width, self.rows, WARM + self.steps)
        return [str(folder), schedule, ",".join(map(str, layers)), *map(str, sizes)]


def simulated(case: Case, schedule: str, folder: Path) -> tuple[Gathered, list[bool]]:
    """(the times of a run in this process, which steps count)."""
    found: list[Gathered] = []
    options = ProfileOptions(folder / "trace.json", case.steps)

    def profiler() -> StepProfiler:
        return StepProfiler(options, io.StringIO(), found.append)

    with contextlib.redirect_stdout(io.StringIO()):
        simulate_script(SCRIPT, case.ranks, True, None, case.arguments(folder, schedule), profiler=profiler)
    return found[0], undisturbed(read_times(case, folder))


def alone(case: Case, schedule: str, folder: Path) -> NodeTimes:
    """What nodes take one after the other in this process."""
    alias.install()
    for _ in range(TRIES):
        gathered, counted = simulated(case, schedule, folder)
        if sum(counted) >= ENOUGH:
            break
    else:
        counted = [True] * len(counted)
    graphs = graphs_of(gathered, case.ranks)
    return NodeTimes.of(graphs, steps_of(gathered, graphs), counted)


def together(case: Case, schedule: str, folder: Path, graphs: Sequence[Graph]) -> NodeTimes:
    """What the nodes of these graphs take while all ranks work, each at its own."""
    file = folder / "together.json"
    steps: list[list[Any]] = [[] for _ in range(case.ranks)]
    counted: list[bool] = []
    for _ in range(TRIES):
        run_ranks(case, schedule, folder, ["--profile", str(file), "--profile-steps", str(case.steps)])
        for own, more in zip(steps, steps_of_trace(file, case.ranks), strict=True):
            own += more
        counted += undisturbed(read_times(case, folder))
        if sum(counted) >= ENOUGH:
            break
    else:
        counted = counted if any(counted) else [True] * len(counted)
    return NodeTimes.of(graphs, steps, counted)


def run_ranks(case: Case, schedule: str, folder: Path, options: Sequence[str] = ()) -> None:
    """Train under MPI, and leave the times of the steps in the folder."""
    command = [sys.executable, "-m", "mspc", "run", str(SCRIPT), "--ranks", str(case.ranks), *options, "--"]
    subprocess.run(
        [*command, *case.arguments(folder, schedule)], env=mpirun_environment(), check=True, stdout=subprocess.DEVNULL
    )


def read_times(case: Case, folder: Path) -> Any:
    """(begin, end, time with a core) of every step that counts, of every rank."""
    return np.array([np.load(folder / f"times_{rank}.npy") for rank in range(case.ranks)])[:, WARM:]


def undisturbed(times: Any) -> list[bool]:
    """The steps in which every rank had its core."""
    share = times[:, :, 2] / (times[:, :, 1] - times[:, :, 0])
    return [bool(each) for each in share.min(0) >= OWN_CORE]


def seconds_of_message(nbytes: int, ranks: int) -> float:
    """What a message of so many bytes takes from one rank to another under MPI, while the sender computes. Where that
    is nearly as long as the sender computes, messages wait for their sender: no timeline knows how long."""
    command = mpirun_command(ranks, [sys.executable, "-c", MESSAGE, str(nbytes), str(WORKS)])
    done = subprocess.run(command, env=mpirun_environment(), capture_output=True, text=True, check=True)
    return float(done.stdout.split("seconds ")[1].split()[0])


def measured(case: Case, schedule: str, folder: Path) -> tuple[list[float], int]:
    """(seconds of each step under MPI that counts, the number of all steps). Where none counts, all do."""
    found: list[tuple[float, bool]] = []
    for _ in range(TRIES):
        run_ranks(case, schedule, folder)
        times = read_times(case, folder)
        steps = times[:, :, 1].max(0) - times[:, :, 0].min(0)
        found += zip(map(float, steps), undisturbed(times), strict=True)
        if sum(counts for _, counts in found) >= ENOUGH:
            break
    return [step for step, counts in found if counts] or [step for step, _ in found], len(found)


def compare(
    case: Case, schedules: Sequence[str], machine: Path | None, out: Callable[[str], None], times_of: str = ""
) -> float:  # fmt: skip
    """Print a line for each schedule; how far the worst prediction by times of ranks together is off."""
    rates = None
    if machine is not None:
        from mspc.search.calibration.machine_file import read_machine

        rates = read_machine(machine)
    known: dict[int, float] = {}
    worst = 0.0
    head = f"{'schedule':16} {'alone':>10} {'together':>10} {'idle':>6} " + f"{'by rates':>10} " * (rates is not None)
    out(f"{head}{'measured':>10} {'steps':>11}   predicted / measured: alone, together")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for schedule in schedules:
            apart = alone(case, schedule, folder)
            graphs = apart.graphs
            known |= {n: seconds_of_message(n, case.ranks) for n in apart.message_bytes() - known.keys()}
            for nbytes in [n for n in apart.message_bytes() if known[n] > WORKS / 2]:
                out(f"note: a message of {nbytes} bytes takes {_ms(known[nbytes])}: it waits for its sender")
            first = apart.timeline(known.__getitem__)
            other = graphs_of(simulated(case, times_of, folder)[0], case.ranks) if times_of else graphs
            times = together(case, times_of or schedule, folder, other)
            if times.actions() != apart.actions():
                times = together(case, schedule, folder, graphs)
            predicted = times.timeline(known.__getitem__, graphs[0].attrs)
            steps, run = measured(case, schedule, folder)
            ratios = [each.makespan / median(steps) for each in (first, predicted)]
            worst = max(worst, abs(ratios[1] - 1))
            idle = sum(map(predicted.idle_share, range(case.ranks))) / case.ranks
            line = f"{schedule:16} {_ms(first.makespan)} {_ms(predicted.makespan)} {idle:6.1%} "
            line += f"{_ms(stage_times(graphs, rates).makespan)} " if rates is not None else ""
            out(f"{line}{_ms(median(steps))} {len(steps):4} of {run:3}   {ratios[0]:.3f} {ratios[1]:.3f}")
    return worst


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:7.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="2,6,4,4", help="of every stage, even numbers; as many are used as ranks")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--rows", type=int, default=192, help="of a micro-batch")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--times-of", default="", help="a schedule by which ranks run together for the times of nodes")
    parser.add_argument("--machine", type=Path, help="a file of mspc calibrate")
    given = parser.parse_args()
    layers = tuple(int(each) for each in given.layers.split(","))[: given.ranks]
    case = Case(layers, given.micro_batches, given.width, given.rows, given.steps)
    print(f"{case.ranks} ranks of {', '.join(map(str, layers))} layers, {case.micro_batches} micro-batches of "
          f"{case.rows} rows, width {case.width}")  # fmt: skip
    schedules = given.schedules.split(",")
    worst = compare(case, schedules, given.machine, lambda line: print(line, flush=True), given.times_of)
    print(f"the worst prediction is {worst:.1%} off")
    sys.exit(worst > ALLOWED)


if __name__ == "__main__":
    main()
