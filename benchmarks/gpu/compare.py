"""mspc beside JAX and PyTorch on GPUs: the same model, sizes, layout, precision and GPUs, in one run.

    python benchmarks/gpu/compare.py [--gpus N] [--models quickstart transformer resnet] [--precisions tf32 bf16]
                                     [--layouts 1x1 1x2 2x1 2x2] [--only mspc jax torch] [--json FILE]

Layouts are data x tensor; ResNet-50 takes those without tensor. Every program runs in processes of its own, one after
the other. Losses of the first 20 steps must agree; the table says the median time of a step, the spread, the time of
the first step (compilation included) and the ratio to mspc's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment

HERE = Path(__file__).resolve().parent
TOLERANCE = {"quickstart": 1e-5, "tf32": 1e-3, "bf16": 1e-2, "resnet": 1e-2}
"""Largest relative difference of a loss from mspc's; steps of ResNet-50 amplify what TF32 rounds."""


def programs(model: str, precision: str, data: int, tensor: int, quick: list[str]) -> dict[str, list[str]]:
    """Command lines by name."""
    layout = ["--data", str(data), "--tensor", str(tensor)]
    ranks = data * tensor
    mpirun = [find_mpirun(), "-n", str(ranks), "--bind-to", "none", "--allow-run-as-root"] if ranks > 1 else []
    python = sys.executable
    if model == "quickstart":
        return {
            "mspc": [*mpirun, python, str(HERE / "quickstart_mspc.py"), *layout],
            "JAX": [python, str(HERE / "quickstart_jax.py"), *layout],
        }
    options = [*layout, "--precision", precision, *quick]
    if model == "resnet":
        return {
            "mspc": [*mpirun, python, str(HERE / "resnet_mspc.py"), *options],
            "JAX, flax": [python, str(HERE / "resnet_jax.py"), *options],
            "PyTorch, compiled": [python, str(HERE / "resnet_torch.py"), *options],
        }
    found = {
        "mspc": [*mpirun, python, str(HERE / "transformer_mspc.py"), *options],
        "JAX, plain attention": [python, str(HERE / "transformer_jax.py"), *options, "--attention", "plain"],
        "JAX, cuDNN attention": [python, str(HERE / "transformer_jax.py"), *options, "--attention", "fused"],
        "PyTorch, compiled": [python, str(HERE / "transformer_torch.py"), *options],
    }
    if precision != "bf16":
        del found["JAX, cuDNN attention"]  # cuDNN's fused attention takes halves only
    return found


def measured(command: list[str], limit: float) -> dict[str, Any]:
    """What a program printed last, or {"error": why there is nothing}."""
    environment = {**os.environ, **mpirun_environment(), "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, timeout=limit, cwd=HERE
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {limit:.0f} s"}
    except OSError as error:
        return {"error": str(error.strerror)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"]
        first = next((k for k, line in enumerate(said) if "error" in line.lower()), len(said) - 1)
        said = said[max(0, min(first, len(said) - 12)) :][:12]
        return {"error": "\n      ".join(said)}
    return {**json.loads(lines[-1]), "warnings": [w for w in done.stderr.splitlines() if w.startswith("warning")]}


def differs(losses: list[float], wanted: list[float]) -> float:
    """The largest relative difference of two lists of losses."""
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, wanted, strict=True))


def show(name: str, found: dict[str, Any], ours: dict[str, Any], tolerance: float) -> None:
    """One line of the table."""
    if "error" in found:
        print(f"  {name:22} failed: {found['error']}", flush=True)
        return
    times = [1000 * t for t in found["times"]]
    line = (
        f"  {name:22} {1000 * found['median']:9.3f} ms ({min(times):.3f} to {max(times):.3f}), "
        f"first step {found['first']:5.1f} s"
    )
    if found is not ours and "median" in ours:
        apart = differs(found["losses"], ours["losses"])
        said = "losses agree" if apart <= tolerance else f"LOSSES DIFFER, more than {tolerance:g}"
        line += f", mspc / it {ours['median'] / found['median']:.2f}, {said} ({apart:.1e})"
    else:
        line += f", loss {found['losses'][0]:.6f} to {found['losses'][-1]:.6f}"
    for warning in found["warnings"][:3]:
        line += f"\n      {warning}"
    print(line, flush=True)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4, help="layouts that need more are left out")
    parser.add_argument("--models", nargs="*", default=["quickstart", "transformer", "resnet"])
    parser.add_argument("--precisions", nargs="*", default=["tf32", "bf16"])
    parser.add_argument("--layouts", nargs="*", default=["1x1", "1x2", "2x1", "2x2"])
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of the programs to run")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a program")
    parser.add_argument("--small", action="store_true", help="a network of two narrow layers, to try this script")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    small = {
        "transformer": ["--layers", "2", "--width", "64", "--heads", "4", "--sequence", "16", "--batch", "4"],
        "resnet": ["--width", "16", "--length", "64", "--batch", "8", "--classes", "10"],
    }
    figures: list[dict[str, Any]] = []
    for model in options.models:
        for precision in options.precisions if model != "quickstart" else ["float32"]:
            for layout in options.layouts:
                data, tensor = (int(n) for n in layout.split("x"))
                if data * tensor > options.gpus or (model == "resnet" and tensor > 1):
                    continue
                print(f"{model}, {precision}, data {data} x tensor {tensor}", flush=True)
                ours: dict[str, Any] = {}
                quick = small.get(model, []) if options.small else []
                for name, command in programs(model, precision, data, tensor, quick).items():
                    if options.only and not any(part.lower() in name.lower() for part in options.only):
                        continue
                    start = time.perf_counter()
                    found = measured(command, options.limit)
                    ours = found if name == "mspc" else ours
                    key = precision if model == "transformer" else model
                    show(name, found, ours, TOLERANCE[key])
                    figures.append({"model": model, "precision": precision, "layout": layout, "program": name,
                                    "seconds": time.perf_counter() - start, **found})  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
