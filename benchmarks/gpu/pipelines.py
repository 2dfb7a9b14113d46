"""A transformer in stages on several GPUs: mspc beside `torch.distributed.pipelining`, and how long stages are idle.

    python benchmarks/gpu/pipelines.py [--stages 2] [--schedules 1f1b interleaved zero_bubble_v] [--precisions bf16]
                                       [--micro-batches 8] [--only mspc PyTorch] [--small] [--json FILE]

24 equal layers; every program starts with the same weights and data, in processes of its own, and the losses of the
first 20 steps must agree. What one GPU takes for the same micro-batches, divided by the stages, is what a stage works
in a step; the rest of a step it is idle, which stands beside the formula of the schedule (docs/pipelines.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE)

from compare import TOLERANCE, measured, show  # noqa: E402  # beside this file

from mspc.engine.ranks.mpirun import find_mpirun  # noqa: E402  # behind the change of the path

FULL = "--layers 24 --width 1024 --heads 16 --sequence 1024 --batch 64 --steps 10 --repeats 3 --rate 1e-4".split()
SMALL = "--layers 8 --width 64 --heads 4 --sequence 16 --batch 8 --steps 2 --repeats 1".split()


def idle(schedule: str, stages: int, micro_batches: int) -> float:
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


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--schedules", nargs="*", default=["1f1b", "interleaved", "zero_bubble_v"])
    parser.add_argument("--precisions", nargs="*", default=["bf16"])
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=["mspc", "PyTorch"])
    parser.add_argument("--limit", type=float, default=240, help="seconds for a program")
    parser.add_argument("--small", action="store_true", help="narrow layers, to try this script")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    for precision in options.precisions:
        sizes = [*(SMALL if options.small else FULL), "--precision", precision]
        sizes += ["--micro-batches", str(options.micro_batches)]
        print(f"{precision}, one GPU, {options.micro_batches} micro-batches", flush=True)
        alone = measured(commands(sizes, 1)["mspc"], options.limit)
        show("mspc", alone, alone, 0)
        figures.append({"precision": precision, "stages": 1, "program": "mspc", **alone})
        for schedule in options.schedules:
            formula = idle(schedule, options.stages, options.micro_batches)
            print(f"{precision}, {options.stages} stages, {schedule}: idle by its formula {formula:.1%}", flush=True)
            given = [*sizes, "--stages", str(options.stages), "--schedule", schedule]
            ours: dict[str, Any] = {}
            for name, command in commands(given, options.stages).items():
                if name not in options.only:
                    continue
                found = measured(command, options.limit)
                ours = found if name == "mspc" else ours
                show(name, found, ours, TOLERANCE[precision])
                if {"median"} <= alone.keys() & found.keys() and name == "mspc":
                    apart = max(abs(a - b) / b for a, b in zip(found["losses"], alone["losses"], strict=True))
                    waited = 1 - alone["median"] / options.stages / found["median"]
                    print(f"    idle {waited:.1%}, losses beside one GPU's: {apart:.1e}", flush=True)
                figures.append({
                    "precision": precision, "stages": options.stages, "schedule": schedule, "program": name, **found
                })  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
