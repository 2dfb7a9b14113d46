"""Seconds per training step of 12 transformer layers on the CPU: mspc beside PyTorch eager and JAX, in one run.

    python benchmarks/cpu_step.py [--peers PYTHON] [--steps N] [--layers N] [--only NAME ...]

Width 512, 8 heads, sequence 128, batch 16, hidden 2048, pre-norm, mean squared error, SGD with momentum,
float32. Each runs in a process of its own, one after the other; `--peers` is a Python that has torch and jax
(this one unless given). A peer that is not installed is left out, and the table says so. The first steps
compile and warm up and do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment

HERE = Path(__file__).resolve().parent
RANKS = 8
WARM_UP = 2
LIMITS = (("mspc, 1 rank", "PyTorch eager", 1.3), (f"mspc, {RANKS} ranks", f"JAX, {RANKS} host devices", 0.5))
"""JAX's own form of the network has [batch, sequence, width] activations. With batch and sequence in one dimension XLA
is three times as fast; half of that is less than the products alone take on two cores. Both are printed."""


def launcher() -> list[str]:
    """The mpirun command line up to the program."""
    return [find_mpirun(), "-n", str(RANKS), "--oversubscribe", "--bind-to", "none"]


def measured(command: list[str], environment: dict[str, str]) -> tuple[list[float], str]:
    """(seconds of the steps after the warm-up, "") or ([], why there are none)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        return [], str(error.strerror)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        missing = [line for line in said if line.startswith("ModuleNotFoundError")]
        return [], f"not installed ({missing[0]})" if missing else said[-1]
    return json.loads(done.stdout.strip().splitlines()[-1])["times"][WARM_UP:], ""


def main() -> None:
    """Print the table and the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, help="a Python that has torch and jax")
    parser.add_argument("--steps", type=int, default=5, help="steps that count")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of the rows to run")
    options = parser.parse_args()
    steps = [str(options.steps + WARM_UP), str(options.layers)]
    one_rank = [sys.executable, str(HERE / "cpu_step_mspc.py"), *steps]
    rows = {
        "PyTorch eager": [options.peers, str(HERE / "cpu_step_torch.py"), *steps],
        "mspc, 1 rank": one_rank,
        f"JAX, {RANKS} host devices": [options.peers, str(HERE / "cpu_step_jax.py"), *steps, str(RANKS)],
        f"JAX, {RANKS} devices, rows": [options.peers, str(HERE / "cpu_step_jax.py"), *steps, str(RANKS), "rows"],
        f"mspc, {RANKS} ranks": [*launcher(), *one_rank],
    }
    # Every load printed is that of the entire machine over the last minute, the rows' own processes included.
    print(f"{options.layers} layers, {options.steps} steps, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    medians: dict[str, float] = {}
    for name, command in rows.items():
        if options.only and not any(part in name for part in options.only):
            continue
        times, reason = measured(command, mpirun_environment())
        if times:
            medians[name] = statistics.median(times)
            print(f"{name:22} {medians[name]:8.3f} s median, {min(times):.3f} to {max(times):.3f}, "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
        else:
            print(f"{name:22} skipped: {reason}", flush=True)
    for ours, theirs, limit in LIMITS:
        if ours in medians and theirs in medians:
            print(f"{ours} / {theirs}: {medians[ours] / medians[theirs]:.2f}, at most {limit}")
    ours, theirs = f"mspc, {RANKS} ranks", f"JAX, {RANKS} devices, rows"
    if ours in medians and theirs in medians:
        print(f"{ours} / {theirs}: {medians[ours] / medians[theirs]:.2f}")


if __name__ == "__main__":
    main()
