"""Seconds per training step of ResNet-50 on the CPU: mspc beside PyTorch eager, step by step in turn.

    python benchmarks/cpu_resnet.py [--peers PYTHON] [--steps N] [--batch N] [--size N] [--threads N]

The network of samples/resnet50_cifar10, 64 x 64, batch 16, SGD with momentum, Float32; both begin with the same weights
and must find the same losses. Each is a process of its own that waits while the other one works; `--peers` is a
Python that has torch. The first steps compile and warm up and do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WARM_UP = 2
LIMIT = 1.5
ALIKE = 1e-2
"""Relative difference of the losses at the second step: Float32 rounding, which a step makes larger."""


def step(process: subprocess.Popen[str]) -> dict[str, float]:
    """One step of a process: its seconds and its loss."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # what it printed says why
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{process.args} ended with status {process.wait()}")
    return json.loads(line)


def main() -> None:
    """Print medians, their ratio and the losses; status 1 where the losses differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--steps", type=int, default=7, help="steps that count")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each of both")
    options = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "OPENBLAS_NUM_THREADS": str(options.threads)}
    interpreters = {"mspc": sys.executable, "torch": options.peers}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in interpreters}
    with tempfile.TemporaryDirectory() as folder:
        processes: dict[str, subprocess.Popen[str]] = {}
        for name, interpreter in interpreters.items():
            script = str(HERE / f"cpu_resnet_{name}.py")
            command = [interpreter, script, str(Path(folder) / "weights.npz"), str(options.batch), str(options.size)]
            processes[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            found[name].append(step(processes[name]))
        for _ in range(WARM_UP + options.steps - 1):
            for name, process in processes.items():
                found[name].append(step(process))
        for process in processes.values():
            process.communicate()
    report(found, options.threads)


def report(found: dict[str, list[dict[str, float]]], threads: int) -> None:
    """Print the table. On a machine that others use, neighbouring steps are what can be compared."""
    print(f"{threads} threads, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    times = {name: [one["seconds"] for one in steps[WARM_UP:]] for name, steps in found.items()}
    for name, seconds in times.items():
        losses = " ".join(f"{one['loss']:.4f}" for one in found[name])
        print(f"{name:6} {statistics.median(seconds):7.3f} s median, {min(seconds):.3f} to {max(seconds):.3f}; "
              f"losses {losses}")  # fmt: skip
    ratios = [ours / theirs for ours, theirs in zip(times["mspc"], times["torch"], strict=True)]
    print(f"mspc takes {statistics.median(ratios):.2f} times PyTorch's time, median of the pairs (at most {LIMIT})")
    first, second = (steps[1]["loss"] for steps in found.values())
    if abs(first - second) > ALIKE * abs(second):
        sys.exit(f"other losses at the second step: {first} and {second}")


if __name__ == "__main__":
    main()
