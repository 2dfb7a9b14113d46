"""Whether a step of uneven stages takes as long as the timeline of its schedule says, on ranks of this machine's CPU.

    python -m benchmarks.pipelines.predicted [--ranks 4] [--layers 2,6,4,4] [--micro-batches 8] [--machine here.toml]

The timeline is given what nodes take, and what a message takes between two ranks; it knows nothing of when a rank
waited, nor of how long a step took. For every schedule as many ranks train under MPI, each on one thread. All steps
are measured, from the first rank's begin to the last one's end, and the nodes of all are timed (`mspc run --profile`),
which takes a hundredth of a step; a step is predicted by the nodes of the steps right before and behind it, never by
its own. So the machine is as busy, and memory and caches are as full, for one as for the other, and what changes
slowly, as other work on the machine, changes both. Each step gives a ratio, predicted / measured; what is printed is
the median of the ratios, and how far it may be off by itself (`+-`, from their middle half and their number). `others`
is what the nodes of the first schedule above with actions of the same kinds predict. Steps count in which every rank
had its core nearly all the time, as far as there are some; then all count, which the column `steps` says. A schedule
is run until the median is known to a hundredth, or its share of `--seconds` is over. With `--machine`, a file of
`mspc calibrate`, a column has what its rates predict. The status is 1 where a prediction is more than 10 % off. Needs
as many cores as ranks.
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
from statistics import quantiles
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
"""Steps that prepare."""
OWN_CORE, ENOUGH = 0.95, 5
"""The part of a step in which a rank has a core at least, and how many such steps are wanted. A rank that waits in MPI
has its core, too."""
KNOWN = 0.01
"""How far a median may be off by itself where no more steps are wanted."""
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
    """A network in stages. layers: of every stage. steps: of a run. Sizes: see uneven_network.py."""

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
        sizes = (self.micro_batches, self.width, self.rows, PREPARING + self.steps)
        return [str(folder), schedule, ",".join(map(str, layers)), *map(str, sizes)]


@dataclass(frozen=True)
class Step:
    """A measured step. seconds: what it took. calm: every rank had its core. before, behind: what nodes took, of every
    rank, in the steps next to it."""

    seconds: float
    calm: bool
    before: list[Steps]
    behind: list[Steps]

    def predicted(self, graphs: Sequence[Graph], message: Callable[[int], float], attrs: Any = None) -> list[Timeline]:
        """The timelines of the steps next to it. attrs: of a program by another schedule with the same actions."""
        return [NodeTimes.of(graphs, each, [True]).timeline(message, attrs) for each in (self.before, self.behind)]


@dataclass(frozen=True)
class Ratios:
    """Of steps: predicted / measured. own: the median. error: how far it may be off by itself."""

    own: float
    error: float

    @staticmethod
    def of(ratios: Sequence[float]) -> Ratios:
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios * 3)
        # Of a median of normal values with this middle half.
        return Ratios(middle, 1.253 * (high - low) / 1.349 / len(ratios) ** 0.5)


@dataclass
class Found:
    """Steps of runs by one schedule."""

    steps: list[Step] = field(default_factory=list[Step])

    @property
    def counted(self) -> list[Step]:
        """The calm ones where there are some, else all."""
        calm = [step for step in self.steps if step.calm]
        return calm if len(calm) >= ENOUGH else self.steps

    def ratios(self, graphs: Sequence[Graph], message: Callable[[int], float]) -> Ratios:
        """predicted / measured."""
        return Ratios.of([
            sum(line.makespan for line in step.predicted(graphs, message)) / 2 / step.seconds for step in self.counted
        ])  # fmt: skip

    def typical(self, graphs: Sequence[Graph], message: Callable[[int], float], attrs: Any = None) -> Timeline:
        """The predicted timeline of median length. attrs: as of `Step`."""
        each = [line for step in self.counted for line in step.predicted(graphs, message, attrs)]
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


def read_run(case: Case, folder: Path) -> list[Step]:
    """The measured steps of a run: those with a timed one before and behind. Behind the last one times are gathered."""
    of_ranks = steps_of_trace(folder / "trace.json", case.ranks)
    timed = [[[own] for own in step] for step in zip(*of_ranks, strict=True)]
    times = np.array([np.load(folder / f"times_{rank}.npy")[PREPARING:] for rank in range(case.ranks)])
    calm = undisturbed(times)
    seconds = [float(each) for each in times[:, :, 1].max(0) - times[:, :, 0].min(0)]
    return [Step(seconds[n], calm[n], timed[n - 1], timed[n + 1]) for n in range(1, case.steps - 1)]


def undisturbed(times: Any) -> list[bool]:
    """The steps in which every rank had its core. times: (begin, end, time with a core) of every rank and step."""
    share = times[:, :, 2] / (times[:, :, 1] - times[:, :, 0])
    return [bool(each) for each in share.min(0) >= OWN_CORE]


def run_until_known(
    case: Case, schedule: str, folder: Path, ratios: Callable[[Found], Ratios], until: float
) -> Found:  # fmt: skip
    """The steps of one run, and of more until the median is known well. until: no run is begun later."""
    found = Found()
    while not found.steps or (time.perf_counter() < until and ratios(found).error > KNOWN):
        run_ranks(case, schedule, folder)
        found.steps += read_run(case, folder)
    return found


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
        message = self.known.__getitem__
        found = run_until_known(self.case, schedule, folder, lambda found: found.ratios(graphs, message), until)
        ratios, line = found.ratios(graphs, message), found.typical(graphs, message)
        seconds = [step.seconds for step in found.counted]
        idle = sum(map(line.idle_share, range(self.case.ranks))) / self.case.ranks
        low, step, high = quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        rates = f"{_ms(stage_times(graphs, self.rates).makespan)} " if self.rates is not None else ""
        other = self._by_another(graphs)
        others = "" if other is None else f"{other / step:.3f}"
        counted = f"{len(seconds):3} of {len(found.steps):2}"
        self.out(f"{schedule:15} {_ms(line.makespan)} {idle:6.1%} {rates}{_ms(step)} {(high - low) / step:7.1%} "
                 f"{counted}   {ratios.own:.3f} +- {ratios.error:.3f}  {others}")  # fmt: skip
        self.run.append((graphs, found))
        return abs(ratios.own - 1)

    def _time_messages(self, graphs: list[Graph]) -> None:
        for nbytes in sorted(NodeTimes(graphs).message_bytes() - self.known.keys()):
            self.known[nbytes] = seconds_of_message(nbytes, self.case.ranks)
            waits = ": it waits for its sender" if self.known[nbytes] > WORKS / 2 else ""
            self.out(f"a message of {nbytes} bytes takes {_ms(self.known[nbytes]).strip()}{waits}")

    def _by_another(self, graphs: list[Graph]) -> float | None:
        actions = NodeTimes(graphs).actions()
        for others, found in self.run:
            if NodeTimes(others).actions() == actions:
                return found.typical(others, self.known.__getitem__, graphs[0].attrs).makespan
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
    parser.add_argument("--steps", type=int, default=10, help="of a run; all but two are compared")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--seconds", type=float, default=90, help="after which no run is repeated")
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
