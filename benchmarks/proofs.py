"""How long `mspc verify --scale` takes for plans of large models, and its memory.

    python -m benchmarks.proofs [8B 8Bx8 70B 405B 671Bx8 671B]

8B on 512 ranks (data 512; and data 64 by tensor 8), 70B on 512 (data 16, tensor 8, 4 stages, 32 micro-batches), 405B on
8,192 (data 64, tensor 8, 16 stages, 32 micro-batches), a network as DeepSeek-V3 of 671B on 2,048 (data 32, experts 8,
tensor 8; 671Bx8 has 8 of its 61 layers): forward, backward and two steps of Adam. They shall take at most 1, 5, 10 and
10 minutes on two cores, and 8 GB. Memory is that of both processes, ranks and one device; shared memory counts once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

NETWORKS = Path(__file__).resolve().parent / "networks"
PLANS = {
    "8B": (512, "staged_llama.py", "32 4096 32 8 14336 128256 512 1 1 1 2048 1f1b"),
    "8Bx8": (512, "staged_llama.py", "32 4096 32 8 14336 128256 64 8 1 1 2048 1f1b"),
    "70B": (512, "staged_llama.py", "80 8192 64 8 28672 128256 16 8 4 32 2048 1f1b"),
    "405B": (8192, "staged_llama.py", "126 16384 128 8 53248 128256 64 8 16 32 2048 1f1b"),
    "671Bx8": (2048, "deepseek.py", "full sorted 32 8 8 8"),
    "671B": (2048, "deepseek.py", "full sorted 32 8 8"),
}
SECONDS = 2.0
"""Between two looks at the memory."""


class Memory(Thread):
    """Looks again and again how much memory a process and its children have. most: bytes."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.most, self._process, self._over = 0, process, Event()

    def run(self) -> None:
        while not self._over.wait(SECONDS):
            self.most = max(self.most, self._of(self._process))

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()

    def _of(self, process: int) -> int:
        folder = Path("/proc") / str(process)
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
            children = (folder / "task" / str(process) / "children").read_text().split()
        except OSError:  # it has ended
            return 0
        own = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        return own + sum(map(self._of, map(int, children)))


def main() -> None:
    """Print a line for each plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=PLANS, metavar="NAME")
    for name in parser.parse_args().names or PLANS:
        ranks, script, words = PLANS[name]
        target = [str(NETWORKS / script), "--ranks", str(ranks)]
        command = [sys.executable, "-m", "mspc", "verify", "--scale", *target, "-q", "--"]
        begin = time.perf_counter()
        process = subprocess.Popen([*command, *words.split()], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        memory = Memory(process.pid)
        memory.start()
        said = process.stdout.read().strip().splitlines()
        memory.stop()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        most = max(memory.most, used.ru_maxrss << 10)  # of what is over within two looks one process tells
        spent = used.ru_utime + used.ru_stime
        print(
            f"{name:6} {ranks:5} ranks: {seconds:6.1f} s, {spent:6.1f} s of CPU, "
            f"{most / 1e9:4.1f} GB, status {os.waitstatus_to_exitcode(status)}: {said[-1] if said else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
