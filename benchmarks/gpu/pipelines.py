"""A transformer in stages on several GPUs: mspc beside `torch.distributed.pipelining`, and how long stages are idle.

    python benchmarks/gpu/pipelines.py [--stages 2] [--schedules 1f1b interleaved zero_bubble_v] [--precisions bf16]
                                       [--micro-batches 8] [--only mspc PyTorch] [--small] [--json FILE]
                                       [--ordered MACHINE [--keep-more 0 2]]

24 equal layers; every program starts with the same weights and data, in processes of its own, and the losses of the
first 20 steps must agree. What one GPU takes for the same micro-batches, divided by the stages, is what a stage would
work in a step; by how much of itself a step is longer stands beside the formula of the schedule (docs/pipelines.md). So
does how much of a step a stage is idle: how long its GPU waits for what others send, with nothing else to do.

With --ordered mspc writes, ahead of the run, the order of each schedule's work that is quickest by the rates of a
machine (its name, or a file of `mspc calibrate`), and runs with it, too: once for each number of --keep-more, the
micro-batches that a stage may keep beyond the schedule's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment

HERE = Path(__file__).resolve().parent
TOLERANCE = {"tf32": 1e-3, "bf16": 1e-2}
"""Largest relative difference of a loss from mspc's."""
FULL = "--layers 24 --width 1024 --heads 16 --sequence 1024 --batch 64 --steps 20 --repeats 2 --rate 1e-4".split()
SMALL = "--layers 8 --width 64 --heads 4 --sequence 16 --batch 8 --steps 2 --repeats 1".split()


def formula_of(schedule: str, stages: int, micro_batches: int) -> float:
    """The part of a step in which a stage is idle, by the formulas of the schedules, for equal stages."""
    waits = {"interleaved": (stages - 1) / 2, "zero_bubble_v": 0}.get(schedule, stages - 1)
    return waits / (waits + micro_batches)


def commands(sizes: list[str], stages: int) -> dict[str, list[str]]:
    """Command lines by name."""
    mpirun = [find_mpirun(), "-n", str(stages), "--bind-to", "none", "--allow-run-as-root"] if stages > 1 else []
    found = {"mspc": [*mpirun, sys.executable, str(HERE / "transformer_mspc.py"), *sizes]}
    if stages > 1:
        found["PyTorch"] = [sys.executable, str(HERE / "pipelines_torch.py"), *sizes]
    return found


def write_order(sizes: list[str], stages: int, machine: str, more: int, path: Path) -> str:
    """Write the order of a schedule's work; why there is none, or nothing."""
    command = [sys.executable, "-m", "mspc", "compile", str(HERE / "transformer_mspc.py"), "--ranks", str(stages)]
    command += ["--schedule", str(path), "--machine", machine, "--keep-more", str(more), "--quiet"]
    command += ["--out", str(path.with_suffix("")), "--", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def programs(options: argparse.Namespace, sizes: list[str], folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The command lines of a schedule by name, those with orders of their own behind mspc's."""
    for name, command in commands(sizes, options.stages).items():
        if name in options.only:
            yield name, command
        for more in options.keep_more if options.ordered and name == "mspc" else ():
            table = folder / f"keeps_{more}_more.csv"
            failed = write_order(sizes, options.stages, options.ordered, more, table)
            if failed:
                print(f"  no order that keeps {more} more: {failed}", flush=True)
                continue
            yield f"mspc ordered, +{more} kept", commands([*sizes, "--order", str(table)], options.stages)["mspc"]


def measured(command: list[str], limit: float) -> dict[str, Any]:
    """Return the last figures that a program printed, or {"error": the reason for none}."""
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
    """Return the largest relative difference of two lists of losses."""
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
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--schedules", nargs="*", default=["1f1b", "interleaved", "zero_bubble_v"])
    parser.add_argument("--precisions", nargs="*", default=["bf16"])
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=["mspc", "PyTorch"])
    parser.add_argument("--ordered", metavar="MACHINE", default="", help="run with orders by its rates, too")
    parser.add_argument("--keep-more", nargs="*", type=int, default=[0])
    parser.add_argument("--limit", type=float, default=240, help="seconds for a program")
    parser.add_argument("--small", action="store_true", help="narrow layers, to try this script")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    if Path(options.ordered).is_file():
        options.ordered = str(Path(options.ordered).resolve())
    figures: list[dict[str, Any]] = []
    for precision in options.precisions:
        sizes = [*(SMALL if options.small else FULL), "--precision", precision]
        sizes += ["--micro-batches", str(options.micro_batches)]
        print(f"{precision}, one GPU, {options.micro_batches} micro-batches", flush=True)
        alone = measured(commands(sizes, 1)["mspc"], options.limit)
        show("mspc", alone, alone, 0)
        figures.append({"precision": precision, "stages": 1, "program": "mspc", **alone})
        for schedule in options.schedules:
            with tempfile.TemporaryDirectory() as folder:
                figures += rows(options, precision, schedule, sizes, alone, Path(folder))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def rows(
    options: argparse.Namespace, precision: str, schedule: str, sizes: list[str], alone: dict[str, Any], folder: Path
) -> list[dict[str, Any]]:  # fmt: skip
    """Run all programs of a schedule, beside one GPU `alone`, and print their lines."""
    formula = formula_of(schedule, options.stages, options.micro_batches)
    print(f"{precision}, {options.stages} stages, {schedule}: idle by its formula {formula:.1%}", flush=True)
    given = [*sizes, "--stages", str(options.stages), "--schedule", schedule]
    ours: dict[str, Any] = {}
    figures: list[dict[str, Any]] = []
    for name, command in programs(options, given, folder):
        found = measured(command, options.limit)
        ours = found if name == "mspc" else ours
        show(name, found, ours, TOLERANCE[precision])
        if {"median"} <= alone.keys() & found.keys() and name.startswith("mspc"):
            apart = max(abs(a - b) / b for a, b in zip(found["losses"], alone["losses"], strict=True))
            longer = 1 - alone["median"] / options.stages / found["median"]
            idle = [waited / found["median"] for waited in found["waited"]]
            print(
                f"    idle {sum(idle) / len(idle):.1%} ({', '.join(f'{stage:.1%}' for stage in idle)}), "
                f"longer {longer:.1%}, losses beside one GPU's: {apart:.1e}", flush=True,
            )  # fmt: skip
        figures.append({
            "precision": precision, "stages": options.stages, "schedule": schedule, "program": name, **found
        })  # fmt: skip
    return figures


if __name__ == "__main__":
    main()
