"""Compiles of networks that no rank could hold unsharded: time, peak memory and bytes written of one rank's compile, of
the one of long texts of all ranks' compile.

    python benchmarks/large.py [--tries N]

Every figure is that of a fresh process, the fastest of N tries, printed beside what it must not exceed. A compile makes
no parameter and no state of an optimizer, so all three grow with the number of operators alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent / "networks"
MEGA = 1e6


@dataclass(frozen=True)
class Network:
    """A network and its limits. sizes: the script's arguments. seconds, memory and written in MB: at most. rank: which
    one is compiled; "" for all of them."""

    name: str
    sizes: str
    ranks: int
    seconds: float
    memory: float
    written: float
    script: str = "llama.py"
    rank: str = "0"


NETWORKS = (
    Network("7B, 32 layers x 4096", "32 4096 32 11008 32000 8 8 8 2048", 64, 8, 300, 50),
    Network("70B, 80 layers x 8192", "80 8192 64 28672 32000 128 8 128 2048", 1024, 15, 400, 50),
    Network(
        "8B, 131072 words, lazy", "lazy 32 4096 32 8 14336 128256 1 8 8 131072", 64, 10, 300, 50, "long_llama.py", ""
    ),
)


@dataclass(frozen=True)
class Cost:
    """What one compile took. seconds: of wall time. processor: of the processor's time. memory, written: in MB."""

    seconds: float
    processor: float
    memory: float
    written: float


def compile_once(network: Network) -> Cost:
    """One `mspc compile` in a fresh process. Raises CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mspc", "compile", str(SCRIPTS / network.script)]
        command += ["--ranks", str(network.ranks), *(["--rank", network.rank] if network.rank else [])]
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--out", f"{folder}/out", "--", *network.sizes.split()], stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    # Linux counts memory in kibibytes, macOS in bytes.
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Cost(seconds, used.ru_utime + used.ru_stime, memory / MEGA, written / MEGA)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    tries = parser.parse_args().tries
    for network in NETWORKS:
        cost = min((compile_once(network) for _ in range(tries)), key=lambda cost: cost.seconds)
        print(
            f"{network.name:22} {network.ranks:5} ranks, {f'--rank {network.rank}' if network.rank else 'all':8}:  "
            f"{cost.seconds:6.2f} s (at most {network.seconds:g}; processor {cost.processor:.2f} s)  "
            f"{cost.memory:5.0f} MB (at most {network.memory:g})  "
            f"{cost.written:5.1f} MB written (at most {network.written:g})"
        )


if __name__ == "__main__":
    main()
