"""How long `mspc verify --scale` takes for plans of large models, and its memory.

    python -m benchmarks.proofs [8B 8Bx8 70B 405B 671Bx8 671B]

8B on 512 ranks (data 512; and data 64 by tensor 8), 70B on 512 (data 16, tensor 8, 4 stages, 32 micro-batches), 405B on
8,192 (data 64, tensor 8, 16 stages, 32 micro-batches), a network as DeepSeek-V3 of 671B on 2,048 (data 32, experts 8,
tensor 8; 671Bx8 has 8 of its 61 layers): forward, backward and two steps of Adam. They shall take at most 1, 5, 10 and
10 minutes on two cores, and 8 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

NETWORKS = Path(__file__).resolve().parent / "networks"
PLANS = {
    "8B": (512, "staged_llama.py", "32 4096 32 8 14336 128256 512 1 1 1 2048 1f1b"),
    "8Bx8": (512, "staged_llama.py", "32 4096 32 8 14336 128256 64 8 1 1 2048 1f1b"),
    "70B": (512, "staged_llama.py", "80 8192 64 8 28672 128256 16 8 4 32 2048 1f1b"),
    "405B": (8192, "staged_llama.py", "126 16384 128 8 53248 128256 64 8 16 32 2048 1f1b"),
    "671Bx8": (2048, "deepseek.py", "full sorted 32 8 8 8"),
    "671B": (2048, "deepseek.py", "full sorted 32 8 8"),
}
BY_NAME = ("671B",)
"""Plans that are run where they are named alone: all layers take 21 GB and more."""


def main() -> None:
    """Print a line for each plan."""
    for name in sys.argv[1:] or [name for name in PLANS if name not in BY_NAME]:
        ranks, script, words = PLANS[name]
        target = [str(NETWORKS / script), "--ranks", str(ranks)]
        command = [sys.executable, "-m", "mspc", "verify", "--scale", *target, "-q", "--"]
        begin = time.perf_counter()
        process = subprocess.Popen([*command, *words.split()], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.read().strip().splitlines()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        spent = used.ru_utime + used.ru_stime
        print(
            f"{name:6} {ranks:5} ranks: {seconds:6.1f} s, {spent:6.1f} s of the processor, "
            f"{used.ru_maxrss / 1e6:4.1f} GB, status {os.waitstatus_to_exitcode(status)}: {said[-1] if said else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
