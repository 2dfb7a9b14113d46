"""Layers whose ranks exchange slices of texts or rows of experts, on several GPUs: a step beside its estimate.

    python -m benchmarks.gpu.exchanges [--ranks 4] [--cases ring slices tables sorted] [--machine h200] [--steps 20]
                                       [--small] [--json FILE]

`ring` and `slices` (for heads) train LLaMA's layers on a text that all ranks share, `tables` and `sorted` layers of
experts that they share. Every case is a job of its own, which prints the loss of every step; the time is the median
from one to the next. The estimate is the cost model's, of the slowest rank, by the rates of `--machine`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mspc.analysis.cost.timeline import Timeline
from mspc.api.state import Session
from mspc.compiler.driver import compile_call
from mspc.engine.capture import capture
from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from mspc.output.programs import config_of
from mspc.search.calibration.machine_file import machine_of

NETWORKS = Path(__file__).resolve().parents[1] / "networks"
WARM = 4
"""Steps that are not timed."""


@dataclass(frozen=True)
class Case:
    """script: of benchmarks/networks, arguments: what it is given but for the number of steps, which is the last."""

    script: str
    arguments: tuple[str, ...]

    def words(self, steps: int) -> list[str]:
        return [*self.arguments[:3], str(steps)] if self.script == "experts.py" else [*self.arguments, str(steps)]


def cases(ranks: int, small: bool) -> dict[str, Case]:
    """By the names of the command line."""
    sizes = (2, 64, 4, 4, 128, 256) if small else (2, 4096, 32, 8, 14336, 32000)
    length = 64 * ranks if small else 8192 * ranks
    text = [str(number) for number in (*sizes, 1, ranks, 1, length)]
    experts = "small-mixtral" if small else "medium-mixtral"
    return {
        "ring": Case("long_llama.py", (*text, "1")),
        "slices": Case("long_llama.py", (*text, str(ranks))),
        "tables": Case("experts.py", (experts, "tables", str(ranks))),
        "sorted": Case("experts.py", (experts, "sorted", str(ranks))),
    }


def measured(case: Case, ranks: int, steps: int, limit: float) -> dict[str, Any]:
    """{"seconds", "losses"} of a job, or {"error": why there are none}."""
    command = [find_mpirun(), "-n", str(ranks), "--bind-to", "none", "--allow-run-as-root", sys.executable, "-u", "-m",
               "mspc", "run", str(NETWORKS / case.script), "--device", "gpu", "--"]  # fmt: skip
    command += case.words(WARM + steps)
    environment = {**os.environ, **mpirun_environment()}
    begun, times, losses = time.perf_counter(), [], []
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith("loss"):
            times.append(time.perf_counter())
            losses.append(float(line.split()[1]))
        if time.perf_counter() - begun > limit:
            job.kill()
    _, said = job.communicate()
    own = times[:: len(times) // (WARM + steps)] if len(times) >= WARM + steps else []  # every rank prints
    if job.returncode or not own:
        lines = [line for line in said.splitlines() if "rror" in line] or said.strip().splitlines()
        return {"error": "\n".join(lines[:8])}
    apart = [after - before for before, after in zip(own[WARM - 1 :], own[WARM:], strict=False)]
    return {"seconds": statistics.median(apart), "first": own[0] - begun, "losses": losses[:: len(times) // len(own)]}


def estimated(case: Case, ranks: int, machine: Any) -> Timeline:
    """The step of the rank that takes longest, as the cost model lays it out: of a causal ring some have more pairs of
    slices to work on than others."""
    captured = capture(NETWORKS / case.script, case.words(2), Session.of_rank(0, ranks))
    config = replace(config_of(captured, ranks), device="GPU")
    compiled = compile_call(captured.target, captured.args, config)
    return max((Timeline(compiled.rank_graph(rank), machine) for rank in range(ranks)), key=lambda step: step.total)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cases", nargs="*", default=list(cases(4, True)))
    parser.add_argument("--machine", default="h200", help="a known machine, or a file of mspc calibrate")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=float, default=120, help="seconds for a job")
    parser.add_argument("--small", action="store_true", help="narrow layers, to try this script")
    parser.add_argument("--estimates", action="store_true", help="nothing is run")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    machine, figures = machine_of(options.machine), []
    for name in options.cases:
        case = cases(options.ranks, options.small)[name]
        step = estimated(case, options.ranks, machine)
        line = f"{name:8} {options.ranks} ranks: estimated {1e3 * step.total:8.3f} ms, sending "
        line += f"{step.communication / step.total:.0%} of it, {step.hidden:.0%} hidden"
        found = {} if options.estimates else measured(case, options.ranks, options.steps, options.limit)
        if "seconds" in found:
            line += f"; measured {1e3 * found['seconds']:8.3f} ms, {step.total / found['seconds'] - 1:+.1%}"
            line += f", loss {found['losses'][0]:.4f} to {found['losses'][-1]:.4f}, first {found['first']:.1f} s"
        print(line + (f"; failed:\n{found['error']}" if "error" in found else ""), flush=True)
        figures.append({"case": name, "ranks": options.ranks, "estimated": step.total, **found})
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
