"""Whether a step of uneven stages takes as long as the timeline of its schedule says, on ranks of this machine's CPU.

    python -m benchmarks.pipelines.predicted [--ranks 4] [--layers 2,6,4,4] [--micro-batches 8] [--machine here.toml]

The timeline is given what nodes take, and what a message takes between two ranks; it knows nothing of when a rank
waited. For every schedule as many ranks train under MPI, each on one thread: the nodes of the first steps are timed
(`mspc run --profile`), the steps behind these are measured, from the first rank's begin to the last one's end. So
memory, caches and cores are the same for both, and no step is measured by times of its own. Each timed step gives a
timeline; what is printed is the median of these, and of the steps; `spread` is what the middle half of the steps lies
apart. `others` is what the nodes of the first schedule above with actions of the same kinds predict. Steps count in
which every rank had its core nearly all the time; a run that has too few of these is repeated while `--seconds` last,
and then all count, which the column `steps` says. With `--machine`, a file of `mspc calibrate`, a column has what its
rates predict. The status is 1 where a prediction is more than 10 % off. Needs as many cores as ranks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

if __name__ == "__main__":  # before NumPy is loaded, here and in the ranks
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

from benchmarks.pipelines.node_times import NodeTimes, Steps, graphs_of_folder, steps_of_trace
from mspc.analysis.cost.machine import Machine
from mspc.engine.ranks.mpirun import mpirun_command, mpirun_environment
from mspc.ir.graph import Graph
from mspc.output.stage_times import stage_times
from mspc.passes.pipelining.timeline import Timeline

SCRIPT = Path(__file__).with_name("uneven_network.py")
SCHEDULES = ("1f1b", "gpipe", "zero_bubble_h1", "zero_bubble_2p", "interleaved", "zero_bubble_v", "dual_pipe_v")
TWO_CHUNKS = ("interleaved", "zero_bubble_v", "dual_pipe_v")
ALLOWED = 0.10
PREPARING = 2
"""Steps that prepare; as many are left out behind those whose nodes are timed, when times are gathered and written."""
OWN_CORE, ENOUGH = 0.95, 3
"""The part of a step in which a rank has a core at least, and how many such steps of both kinds are wanted. A rank that
waits in MPI has its core, too."""
WORKS = 0.02
"""Seconds that a rank computes behind a message whose time is measured."""
MESSAGE = """
import sys, time
import numpy as np
from mspc.runtime.comm.mpi import MpiComm
comm, array = MpiComm(), np.ones(int(sys.argv[1]), np.uint8)
factor = np.ones((512, 512), np.float32)
times = []
for _ in range(51):
    comm.barrier(tuple(range(comm.size)))
    begin = time.perf_counter()
    if comm.rank == 0:
        comm.send(array, 1, 1)
        while time.perf_counter() < begin + float(sys.argv[2]):
            factor @ factor
    if comm.rank == 1:
        comm.receive(0, 1, array.shape, array.dtype)
        times.append(time.perf_counter() - begin)
if comm.rank == 1:
    print("seconds", sorted(times)[len(times) // 2])
comm.finalize()
"""


@dataclass(frozen=True)
class Case:
    """A network in stages. layers: of every stage. steps: of each kind, timed and measured. Sizes: see
    uneven_network.py."""

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
        layers = [each // 2 for each in self.layers] if schedule in TWO_CHUNKS else self.layers
        sizes = (self.micro_batches, self.width, self.rows, 2 * (PREPARING + self.steps))
        return [str(folder), schedule, ",".join(map(str, layers)), *map(str, sizes)]


@dataclass
class Found:
    """Steps of runs by one schedule. timed: what nodes took in them, of every rank. seconds: of the measured ones."""

    timed: list[list[Steps]] = field(default_factory=list[Any])
    seconds: list[float] = field(default_factory=list[float])

    def add(self, other: Found) -> None:
        self.timed += other.timed
        self.seconds += other.seconds

    @property
    def is_enough(self) -> bool:
        return min(len(self.timed), len(self.seconds)) >= ENOUGH

    def predicted(self, graphs: Sequence[Graph], message: Callable[[int], float], attrs: Any = None) -> Timeline:
        """The timeline of median length. attrs: of a program by another schedule with the same actions."""
        each = [NodeTimes.of(graphs, steps, [True]).timeline(message, attrs) for steps in self.timed]
        return sorted(each, key=lambda timeline: timeline.makespan)[len(each) // 2]


def run_ranks(case: Case, schedule: str, folder: Path) -> None:
    """Train under MPI, and leave the times of nodes and of steps in the folder."""
    options = ["--device", "cpu", "--profile", str(folder / "trace.json"), "--profile-steps", str(case.steps)]
    command = [sys.executable, "-m", "mspc", "run", str(SCRIPT), "--ranks", str(case.ranks), *options, "--"]
    subprocess.run(
        [*command, *case.arguments(folder, schedule)], env=mpirun_environment(), check=True, stdout=subprocess.DEVNULL
    )


def programs(case: Case, schedule: str, folder: Path) -> list[Graph]:
    """What the ranks run."""
    command = [sys.executable, "-m", "mspc", "compile", str(SCRIPT), "--ranks", str(case.ranks), "--quiet"]
    subprocess.run([*command, "--out", str(folder / schedule), "--", *case.arguments(folder, schedule)], check=True)
    return graphs_of_folder(folder / schedule, case.ranks)


def read_run(case: Case, folder: Path) -> tuple[Found, Found]:
    """(steps in which every rank had its core, all steps) of a run."""
    timed = [list(each) for each in zip(*steps_of_trace(folder / "trace.json", case.ranks), strict=True)]
    times = np.array([np.load(folder / f"times_{rank}.npy") for rank in range(case.ranks)])
    calm = undisturbed(times)
    first, measured = PREPARING, 2 * PREPARING + case.steps
    seconds = [float(each) for each in times[:, measured:, 1].max(0) - times[:, measured:, 0].min(0)]
    alone = [[[step] for step in ranks] for ranks in timed]
    # The last timed step ends with what is done for all of them: its nodes count, whoever had the core then.
    kept = Found(
        [each for each, counts in zip(alone, calm[first : first + case.steps], strict=True) if counts],
        [each for each, counts in zip(seconds, calm[measured:], strict=True) if counts],
    )
    return kept, Found(alone, seconds)


def undisturbed(times: Any) -> list[bool]:
    """The steps in which every rank had its core. times: (begin, end, time with a core) of every rank and step."""
    share = times[:, :, 2] / (times[:, :, 1] - times[:, :, 0])
    return [bool(each) for each in share.min(0) >= OWN_CORE]


def run_until_enough(case: Case, schedule: str, folder: Path, until: float) -> tuple[Found, int]:
    """(the steps that count, how many were measured). until: no run is begun later."""
    kept, every = Found(), Found()
    while not every.seconds or (not kept.is_enough and time.perf_counter() < until):
        run_ranks(case, schedule, folder)
        calm, more = read_run(case, folder)
        kept.add(calm)
        every.add(more)
    return kept if kept.is_enough else every, len(every.seconds)


def seconds_of_message(nbytes: int, ranks: int) -> float:
    """What a message of so many bytes takes from one rank to another under MPI, while the sender computes. Where that
    is nearly as long as the sender computes, messages wait for their sender: no timeline knows how long."""
    command = mpirun_command(ranks, [sys.executable, "-c", MESSAGE, str(nbytes), str(WORKS)])
    done = subprocess.run(command, env=mpirun_environment(), capture_output=True, text=True, check=True)
    return float(done.stdout.split("seconds ")[1].split()[0])


@dataclass
class Comparison:
    """Predictions beside measured steps. known: seconds of messages by their bytes. run: programs, and steps that
    count, of the schedules so far."""

    case: Case
    rates: Machine | None
    out: Callable[[str], None]
    known: dict[int, float] = field(default_factory=dict[int, float])
    run: list[tuple[list[Graph], Found]] = field(default_factory=list[Any])

    def head(self) -> None:
        rates = f"{'by rates':>10} " if self.rates is not None else ""
        self.out(f"{'schedule':15} {'predicted':>10} {'idle':>6} {rates}{'measured':>10} {'spread':>7} {'steps':>9}"
                 "   predicted / measured: own, others")  # fmt: skip

    def add(self, schedule: str, folder: Path, until: float) -> float:
        """Run one more schedule and print its line; how far its prediction is off."""
        graphs = programs(self.case, schedule, folder)
        self._time_messages(graphs)
        found, measured = run_until_enough(self.case, schedule, folder, until)
        own = found.predicted(graphs, self.known.__getitem__)
        idle = sum(map(own.idle_share, range(self.case.ranks))) / self.case.ranks
        step = median(found.seconds)
        low, _, high = quantiles(found.seconds, n=4) if len(found.seconds) > 1 else (step,) * 3
        rates = f"{_ms(stage_times(graphs, self.rates).makespan)} " if self.rates is not None else ""
        other = self._by_another(graphs)
        ratios = f"{own.makespan / step:.3f} {'' if other is None else f'{other / step:.3f}'}"
        self.out(f"{schedule:15} {_ms(own.makespan)} {idle:6.1%} {rates}{_ms(step)} {(high - low) / step:7.1%} "
                 f"{len(found.seconds):3} of {measured:2}   {ratios}")  # fmt: skip
        self.run.append((graphs, found))
        return abs(own.makespan / step - 1)

    def _time_messages(self, graphs: list[Graph]) -> None:
        for nbytes in sorted(NodeTimes(graphs).message_bytes() - self.known.keys()):
            self.known[nbytes] = seconds_of_message(nbytes, self.case.ranks)
            waits = ": it waits for its sender" if self.known[nbytes] > WORKS / 2 else ""
            self.out(f"a message of {nbytes} bytes takes {_ms(self.known[nbytes]).strip()}{waits}")

    def _by_another(self, graphs: list[Graph]) -> float | None:
        actions = NodeTimes(graphs).actions()
        for others, found in self.run:
            if NodeTimes(others).actions() == actions:
                return found.predicted(others, self.known.__getitem__, graphs[0].attrs).makespan
        return None


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:7.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="2,6,4,4", help="of every stage, even numbers; as many are used as ranks")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--rows", type=int, default=192, help="of a micro-batch")
    parser.add_argument("--steps", type=int, default=5, help="that are timed, and as many that are measured")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--seconds", type=float, default=40, help="after which no run is repeated")
    parser.add_argument("--machine", type=Path, help="a file of mspc calibrate")
    given = parser.parse_args()
    layers = tuple(int(each) for each in given.layers.split(","))[: given.ranks]
    case = Case(layers, given.micro_batches, given.width, given.rows, given.steps)
    rates = None
    if given.machine is not None:
        from mspc.search.calibration.machine_file import read_machine

        rates = read_machine(given.machine)
    comparison = Comparison(case, rates, lambda line: print(line, flush=True))
    comparison.out(f"{case.ranks} ranks of {', '.join(map(str, layers))} layers, {case.micro_batches} micro-batches of "
                   f"{case.rows} rows, width {case.width}")  # fmt: skip
    comparison.head()
    begin, schedules = time.perf_counter(), given.schedules.split(",")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, schedule in enumerate(schedules, start=1):
            until = begin + given.seconds * number / len(schedules)
            worst = max(worst, comparison.add(schedule, Path(folder), until))
    print(f"the worst prediction is {worst:.1%} off, in {time.perf_counter() - begin:.0f} s")
    sys.exit(worst > ALLOWED)


if __name__ == "__main__":
    main()
