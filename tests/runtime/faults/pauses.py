"""Pauses ranks of healthy jobs, and stops ranks for good.

A paused rank (SIGSTOP, SIGCONT) must end no job; one that stays stopped must be named within 10 s and end its job
within the limit. Moments, ranks and lengths are drawn with a seed; starting and ending belong to a job's life as steps
do.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment

RANKS = 4
NAMED_WITHIN = 10.0
SCRIPT = """
import sys, time
import numpy as np
import mspc as ms
from mspc import nn, ops
from mspc.communication import init

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
init()

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(np.ones((16, 16), np.float32) / 16, name="w")
        self.matmul = ops.MatMul().shard(((2, 2), (2, 1)))
    def construct(self, x):
        return ops.reduce_mean(self.matmul(x, self.w) ** 2.0)

net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.01))
x = ms.Tensor(np.ones((8, 16), np.float32))
for _ in range(int(sys.argv[1])):
    loss = step(x)
    time.sleep(0.004)
print("loss", loss.asnumpy() > 0)
"""


@dataclass
class Outcome:
    """status: the job's. said: its stderr. named, over: seconds from the stop to the message and to the end."""

    status: int
    said: str
    named: float = -1.0
    over: float = -1.0


class RunningJob:
    """A job of ranks that train, and what it says."""

    def __init__(self, folder: Path, steps: int, *flags: str) -> None:
        script = folder / "net.py"
        script.write_text(SCRIPT)
        command = [find_mpirun(), "-n", str(RANKS), "--oversubscribe", "--bind-to", "none", sys.executable]
        self._process = subprocess.Popen(
            [*command, "-m", "mspc", "run", str(script), *flags, "--", str(steps)],
            env=mpirun_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append((time.monotonic(), line))

    def ranks(self) -> dict[int, int]:
        """The processes of the ranks that are there, by rank."""
        found: dict[int, int] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", Path(f"/proc/{name}/environ").read_text())
            except (OSError, UnicodeDecodeError):
                continue
            if int(stat[1]) == self._process.pid and rank:
                found[int(rank[1])] = int(name)
        return found

    def over(self) -> bool:
        """Whether the job has ended."""
        return self._process.poll() is not None

    def end(self, limit: float) -> Outcome:
        """Wait for the job's end; one that does not come within `limit` seconds is a failure, and is killed."""
        try:
            status = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            for process in self.ranks().values():
                os.kill(process, signal.SIGKILL)
            self._process.kill()
            status = -99
        self._reader.join(5)
        return Outcome(status, "".join(line for _, line in self.lines))


def send(process: int, number: int) -> None:
    """A signal to a process that may be gone."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def pause_job(draw: random.Random, pauses: int, most: float, limit: float, steps: int = 500) -> tuple[int, Outcome]:
    """(pauses that came about, how the job ended) of one job of `steps` for each pause, whose ranks are paused one
    after another."""
    with tempfile.TemporaryDirectory() as folder:
        job = RunningJob(Path(folder), steps * pauses)
        time.sleep(draw.uniform(0.1, 6.0))
        done, limit_of_start = 0, time.monotonic() + limit
        while done < pauses and not job.over():
            ranks = job.ranks()
            if not ranks:
                if time.monotonic() > limit_of_start:
                    break
                time.sleep(0.1)
                continue
            chosen = draw.sample(sorted(ranks), min(len(ranks), draw.choice((1, 1, 1, 2, 3))))
            for rank in chosen:
                send(ranks[rank], signal.SIGSTOP)
            time.sleep(draw.uniform(1.0, most))
            for rank in draw.sample(chosen, len(chosen)):
                send(ranks[rank], signal.SIGCONT)
            done += 1
            time.sleep(draw.uniform(0.0, 1.0))
        return done, job.end(limit)


def stop_job(draw: random.Random, timeout: float, limit: float, latest: float = 8.0) -> Outcome:
    """How a job ended one of whose ranks was stopped for good, at most `latest` seconds after all were there."""
    with tempfile.TemporaryDirectory() as folder:
        job = RunningJob(Path(folder), 100000, "--timeout", f"{timeout:g}")
        limit_of_start = time.monotonic() + limit
        while len(job.ranks()) < RANKS and time.monotonic() < limit_of_start:
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, latest))
        ranks = job.ranks()
        rank = draw.choice(sorted(ranks))
        send(ranks[rank], signal.SIGSTOP)
        stopped = time.monotonic()
        outcome = job.end(limit)
        outcome.over = time.monotonic() - stopped
        outcome.named = next((at - stopped for at, line in job.lines if f"rank {rank} has been stopped" in line), -1.0)
        return outcome
