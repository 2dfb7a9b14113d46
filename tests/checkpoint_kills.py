"""Kills a job that saves at every step, at random moments, any of its ranks or all of them, and starts it again.

    python -m tests.checkpoint_kills [KILLS] [RANKS]

Every start must find a whole set, of the last step or the one before, on all ranks, and the losses of all starts
together must be those of a run that nobody disturbs. Says how many kills there were, and what was found.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mspc.checkpoint.sets import find_sets, open_checkpoint

SCRIPT = """
import os, sys
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops, Parameter
from mindspore.common.initializer import initializer
from mindspore.communication import init, get_rank
from mindspore.train import Model, LossMonitor, ModelCheckpoint, CheckpointConfig, Callback
from mspc.train import resume_training

epochs, folder, style = int(sys.argv[1]), sys.argv[2], sys.argv[3]
init()
ms.set_seed(5)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [16, 32]), "w")
        self.v = Parameter(initializer("normal", [32, 8]), "v")
        self.drop = nn.Dropout(p=0.2)
        self.first = ops.MatMul().shard(((1, 1), (1, 2)))
        self.second = ops.MatMul().shard(((1, 2), (2, 1)))

    def construct(self, x):
        return self.second(self.drop(ops.relu(self.first(x, self.w))), self.v)


class Started(Callback):
    def begin(self, run_context):
        text = f"rank {get_rank()} pid {os.getpid()} goes on from step {resumed.total_step}"
        print(text, file=sys.stderr, flush=True)


numbers = np.random.default_rng(0)
rows = numbers.standard_normal((32, 16)).astype(np.float32), numbers.standard_normal((32, 8)).astype(np.float32)
data = ds.NumpySlicesDataset(rows, ["x", "y"], shuffle=True).batch(4)
net = Net()
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.001))
resumed = resume_training(model, folder, train_dataset=data)
config = CheckpointConfig(1, keep_checkpoint_max=3, integrated_save=False, async_save="async" in style,
                          remove_redundancy="once" in style)
callbacks = [Started(), LossMonitor()] + ([ModelCheckpoint(directory=folder, config=config)] if folder != "-" else [])
model.train(epochs, data, callbacks, initial_epoch=resumed.initial_epoch)
"""
STEPS = 8
"""Steps of an epoch of the script."""
LOSS = re.compile(r"epoch: (\d+) step: (\d+), loss is (\S+)")
START = re.compile(r"rank (\d+) pid (\d+) goes on from step (\d+)")
LONG = 100_000
"""More epochs than any start lives to see."""


class EndedFromOutside(Exception):
    """A job has ended before this program has killed it."""


class Job:
    """A start of the script."""

    def __init__(self, folder: Path, ranks: int, style: str) -> None:
        self.output = folder / "output"
        command = [sys.executable, "-m", "mspc", "run", "train.py", "-n", str(ranks), "--only-rank", "0"]
        with open(self.output, "w") as file:
            self.process = subprocess.Popen(
                [*command, "--", str(LONG), "sets", style], cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.ranks = ranks

    def started(self) -> dict[int, tuple[int, int]]:
        """(process, step from which it goes on) of every rank, once all have begun."""
        while True:
            found = {int(m[1]): (int(m[2]), int(m[3])) for m in START.finditer(self.output.read_text())}
            if len(found) == self.ranks and LOSS.search(self.output.read_text()):
                return found
            if self.process.poll() is not None:
                raise EndedFromOutside(f"the job has ended by itself:\n{self.output.read_text()}")
            time.sleep(0.01)

    def kill(self, pids: list[int]) -> None:
        """Kill these processes, or the whole job where there are none, and wait until all of it is gone."""
        for pid in pids or [self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        if not pids:
            for pid, _ in self.started().values():
                _kill(pid)
        self.process.wait()
        for pid, _ in self.started().values():
            while _lives(pid):
                time.sleep(0.005)

    def losses(self) -> dict[int, str]:
        """The losses that were printed whole, by the number of the step."""
        text = self.output.read_text().rpartition("\n")[0]
        return {(int(m[1]) - 1) * STEPS + int(m[2]): m[3] for m in LOSS.finditer(text)}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def newest(folder: Path) -> int:
    """The step of the newest set, all of whose tensors are whole; 0 where there is none."""
    found = find_sets(folder / "sets", "CKP")
    if not found:
        return 0
    opened = open_checkpoint(found[-1].path)
    assert [text for _, text in opened.verified() if text] == []
    return int(opened.state["total_step"])


def killed(folder: Path, kills: int, ranks: int, seed: int = 0) -> tuple[Counter[str], dict[int, str]]:
    """Kill so many starts; (what was killed and found, the losses of all starts)."""
    chance = random.Random(seed)
    counted: Counter[str] = Counter()
    losses: dict[int, str] = {}
    step = 0
    for number in range(kills):
        job = Job(folder, ranks, chance.choice(["plain", "async", "once", "async once"]))
        try:
            processes = job.started()
        except EndedFromOutside as error:
            if "ended by SIGKILL" not in str(error):
                raise
            counted["ended from outside, not counted as a kill"] += 1
            job = Job(folder, ranks, "plain")
            step, processes = newest(folder), job.started()
        assert {begun for _, begun in processes.values()} == {step}, f"kill {number}: ranks begin at other steps"
        time.sleep(chance.random() * 0.4)
        victim = chance.randrange(-1, ranks)
        job.kill([] if victim < 0 else [processes[victim][0]])
        counted["all ranks" if victim < 0 else "one rank"] += 1
        seen = job.losses()
        differing = [s for s in seen if losses.get(s, seen[s]) != seen[s]]
        assert not differing, f"kill {number}: other losses at steps {differing}"
        losses |= seen
        step = newest(folder)
        behind = max(seen, default=step) - step
        counted[f"newest set {behind} behind the last loss"] += 1
        print(f"kill {number + 1}: step {step}", file=sys.stderr, flush=True)
        assert behind in ((0, 1) if "async" not in job_style(job) else (0, 1, 2)), f"kill {number}: {behind} behind"
    return counted, losses


def job_style(job: Job) -> str:
    """How a job saves."""
    return str(job.process.args[-1])  # type: ignore[index]


def undisturbed(folder: Path, ranks: int, steps: int) -> dict[int, str]:
    """The losses of a run that saves nothing and lives on."""
    command = [sys.executable, "-m", "mspc", "run", "train.py", "-n", str(ranks), "--only-rank", "0", "--simulate"]
    done = subprocess.run(
        [*command, "--", str(-(-steps // STEPS)), "-", ""], cwd=folder, capture_output=True, text=True, check=True
    )
    return {(int(m[1]) - 1) * STEPS + int(m[2]): m[3] for m in LOSS.finditer(done.stdout)}


def main() -> None:
    """Kill, and compare."""
    kills, ranks = (int(n) for n in (*sys.argv[1:], "200", "2")[:2]) if len(sys.argv) < 3 else map(int, sys.argv[1:3])
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as created:
        folder = Path(created)
        (folder / "train.py").write_text(SCRIPT)
        counted, losses = killed(folder, kills, ranks)
        whole = undisturbed(folder, ranks, max(losses))
        differing = [step for step, loss in losses.items() if whole[step] != loss]
    print(f"{kills} kills on {ranks} ranks, {dict(counted)}, {time.monotonic() - start:.0f} s")
    print(f"{len(losses)} steps, {len(differing)} losses differ from those of an undisturbed run")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
