"""Whether a step of uneven stages takes as long as the timeline of its schedule says, on ranks of this machine's CPU.

    python -m benchmarks.pipelines.predicted [--ranks 4] [--layers 1,3,2,2] [--micro-batches 8] [--machine here.toml]

The graphs of all stages run in one process first, stage after stage (simulated ranks): what their nodes take there, and
what a message takes between two ranks, is all that the timeline is given. Then as many ranks run under MPI, each on one
thread, and a step is measured, from the first rank's begin to the last one's end. Both are medians of steps in
which the ranks had their cores nearly all the time; a run of `--steps` steps that has too few of these is repeated.
With `--machine`, a file of `mspc calibrate`, a column has what its rates predict. The status is 1 where a prediction is
more than 10 % off. Needs as many cores as ranks.
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
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # before NumPy is loaded, here and in the ranks
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

from mspc.api import alias
from mspc.engine.profile import Gathered, StepProfiler
from mspc.engine.profile_options import ProfileOptions
from mspc.engine.ranks.mpirun import mpirun_command, mpirun_environment
from mspc.engine.simulate import simulate_script
from mspc.ir.graph import Graph, Node
from mspc.ops.collective.stage_messages import SendToStage
from mspc.output.stage_times import stage_times
from mspc.passes.pipelining.timeline import Timeline
from mspc.runtime.profile import nodes_of

SCRIPT = Path(__file__).with_name("uneven_network.py")
SCHEDULES = ("gpipe", "1f1b", "zero_bubble_h1", "interleaved")
ALLOWED = 0.10
WARM = 2
"""Steps that prepare."""
OWN_CORE, ENOUGH, TRIES = 0.95, 5, 6
"""The part of a step in which a rank has a core at least, how many such steps are wanted, and the most runs for them.
A rank that waits in MPI has its core, too."""
MESSAGE = """
import sys, time
import numpy as np
from mspc.runtime.comm.mpi import MpiComm
comm, array = MpiComm(), np.ones(int(sys.argv[1]), np.uint8)
times = []
for _ in range(51):
    comm.barrier(tuple(range(comm.size)))
    begin = time.perf_counter()
    for sender in range(2 if comm.rank < 2 else 0):
        if comm.rank == sender:
            comm.send(array, 1 - sender, 1)
        else:
            comm.receive(sender, 1, array.shape, array.dtype)
    times.append((time.perf_counter() - begin) / 2)
if comm.rank == 0:
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


@dataclass
class NodeTimes:
    """What the nodes of every stage's graph take by themselves, in seconds."""

    graphs: list[Graph]
    seconds: dict[Node, float] = field(default_factory=dict[Node, float])

    @staticmethod
    def of(case: Case, schedule: str, folder: Path) -> NodeTimes:
        """Of a run in this process."""
        alias.install()
        for _ in range(TRIES):
            gathered, counted = simulated(case, schedule, folder)
            if sum(counted) >= ENOUGH:
                break
        else:
            counted = [True] * len(counted)
        return NodeTimes.read(case, gathered, counted)

    @staticmethod
    def read(case: Case, gathered: Gathered, counted: Sequence[bool]) -> NodeTimes:
        """Of the times of a run. counted: the steps that count."""
        made = NodeTimes([gathered.graphs[rank] for rank in range(case.ranks)])
        made.graphs[0] = gathered.executor.graph
        for rank, graph in enumerate(made.graphs):
            nodes = [node for node, _ in nodes_of(graph)]
            times: dict[Node, list[float]] = {}
            for step, counts in zip(gathered.steps[rank], counted, strict=True):
                for timed in step if counts else ():
                    times.setdefault(nodes[timed.index], []).append(timed.duration / 1000)
            made.seconds |= {node: median(each) for node, each in times.items()}
        return made

    def timeline(self, message: Callable[[int], float]) -> Timeline:
        """message: seconds of one of so many bytes."""
        return stage_times(
            self.graphs,
            own=lambda node: self.seconds.get(node, 0.0),
            way=lambda node: message(node.inputs[0].type.nbytes),
        )

    def message_bytes(self) -> set[int]:
        """The sizes of messages between stages."""
        nodes = (node for graph in self.graphs for node in graph.nodes)
        return {node.inputs[0].type.nbytes for node in nodes if isinstance(node.op, SendToStage)}


def simulated(case: Case, schedule: str, folder: Path) -> tuple[Gathered, list[bool]]:
    """(the times of a run in this process, which steps count)."""
    found: list[Gathered] = []
    options = ProfileOptions(folder / "trace.json", case.steps)

    def profiler() -> StepProfiler:
        return StepProfiler(options, io.StringIO(), found.append)

    with contextlib.redirect_stdout(io.StringIO()):
        simulate_script(SCRIPT, case.ranks, True, None, case.arguments(folder, schedule), profiler=profiler)
    return found[0], undisturbed(read_times(case, folder))


def read_times(case: Case, folder: Path) -> Any:
    """(begin, end, time with a core) of every step that counts, of every rank."""
    return np.array([np.load(folder / f"times_{rank}.npy") for rank in range(case.ranks)])[:, WARM:]


def undisturbed(times: Any) -> list[bool]:
    """The steps in which every rank had its core."""
    share = times[:, :, 2] / (times[:, :, 1] - times[:, :, 0])
    return [bool(each) for each in share.min(0) >= OWN_CORE]


def seconds_of_message(nbytes: int, ranks: int) -> float:
    """What a message of so many bytes takes from one rank to another under MPI."""
    command = mpirun_command(ranks, [sys.executable, "-c", MESSAGE, str(nbytes)])
    done = subprocess.run(command, env=mpirun_environment(), capture_output=True, text=True, check=True)
    return float(done.stdout.split("seconds ")[1].split()[0])


def measured(case: Case, schedule: str, folder: Path) -> tuple[list[float], int]:
    """(seconds of each step under MPI that counts, the number of all steps). Where none counts, all do."""
    command = [sys.executable, "-m", "mspc", "run", str(SCRIPT), "--ranks", str(case.ranks), "--"]
    found: list[tuple[float, bool]] = []
    for _ in range(TRIES):
        subprocess.run(
            [*command, *case.arguments(folder, schedule)], env=mpirun_environment(), check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        times = read_times(case, folder)
        steps = times[:, :, 1].max(0) - times[:, :, 0].min(0)
        found += zip(map(float, steps), undisturbed(times), strict=True)
        if sum(counts for _, counts in found) >= ENOUGH:
            break
    return [step for step, counts in found if counts] or [step for step, _ in found], len(found)


def compare(case: Case, schedules: Sequence[str], machine: Path | None, out: Callable[[str], None]) -> float:
    """Print a line for each schedule; how far the worst prediction is off."""
    rates = None
    if machine is not None:
        from mspc.search.calibration.machine_file import read_machine

        rates = read_machine(machine)
    known: dict[int, float] = {}
    worst = 0.0
    head = f"{'schedule':16} {'by times':>10} {'idle':>6} " + f"{'by rates':>10} " * (rates is not None)
    out(f"{head}{'measured':>10} {'steps':>11}   predicted / measured")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for schedule in schedules:
            times = NodeTimes.of(case, schedule, folder)
            known |= {n: seconds_of_message(n, case.ranks) for n in times.message_bytes() - known.keys()}
            predicted = times.timeline(known.__getitem__)
            steps, run = measured(case, schedule, folder)
            ratio = predicted.makespan / median(steps)
            worst = max(worst, abs(ratio - 1))
            idle = sum(map(predicted.idle_share, range(case.ranks))) / case.ranks
            line = f"{schedule:16} {_ms(predicted.makespan)} {idle:6.1%} "
            line += f"{_ms(stage_times(times.graphs, rates).makespan)} " if rates is not None else ""
            out(f"{line}{_ms(median(steps))} {len(steps):4} of {run:3}   {ratio:.3f}")
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
    parser.add_argument("--machine", type=Path, help="a file of mspc calibrate")
    given = parser.parse_args()
    layers = tuple(int(each) for each in given.layers.split(","))[: given.ranks]
    case = Case(layers, given.micro_batches, given.width, given.rows, given.steps)
    print(f"{case.ranks} ranks of {', '.join(map(str, layers))} layers, {case.micro_batches} micro-batches of "
          f"{case.rows} rows, width {case.width}")  # fmt: skip
    worst = compare(case, given.schedules.split(","), given.machine, lambda line: print(line, flush=True))
    print(f"the worst prediction is {worst:.1%} off")
    sys.exit(worst > ALLOWED)


if __name__ == "__main__":
    main()
