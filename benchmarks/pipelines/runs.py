"""Whether right random schedules run to their end under MPI, as users' tables, and give what one device gives.

    python -m benchmarks.pipelines.runs [--count N] [--first SEED]

Schedules are those of `tests/random_schedules.py`, by their seeds: those that a network can have (chunks in
rounds, or there and back) with as many micro-batches as stages at least, of two stages or more. All of 2 and 4 stages
run in one start of 4 ranks, all of 3 in one of 3 ranks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mspc.engine.ranks.launcher import mpirun_environment
from mspc.passes.lib.schedule_tables import write_table
from mspc.passes.lib.schedules import Schedule
from mspc.passes.lib.stage_placement import ONCE, ROUNDS, V_SHAPED, StagePlacement
from tests.random_schedules import random_schedule

SCRIPT = Path(__file__).with_name("scheduled_network.py")
TOLERANCE = 1e-12
"""How far numbers in Float64 may be apart, relative to numbers above one."""
WAIT = 1800.0
"""Seconds after which ranks that do not end have hung."""


def can_be_run(schedule: Schedule) -> bool:
    """Whether a network can have its chunks where a schedule has them."""
    stages, chunks = schedule.stages, schedule.chunks
    if stages < 2 or schedule.micro_batches < stages:
        return False
    fit = [StagePlacement(stages, shape) for shape in ((ONCE, ROUNDS) if chunks != 2 * stages else (ROUNDS, V_SHAPED))]
    return any(schedule.placement == tuple(map(each.stage, range(chunks))) for each in fit)


def drawn(count: int, first: int = 0, stages: Sequence[int] = (2, 3, 4)) -> dict[int, Schedule]:
    """Return `count` schedules by their seeds."""
    found: dict[int, Schedule] = {}
    seed = first
    while len(found) < count:
        made = random_schedule(Random(seed))
        if can_be_run(made) and made.stages in stages:
            found[seed] = made
        seed += 1
    return found


def run_all(schedules: dict[int, Schedule], ranks: int, folder: Path) -> dict[int, dict[str, Any]]:
    """Return the results of each schedule on these ranks, by seed; those that have not come to their end are left out.
    1 rank: what one device gives."""
    folder.mkdir()
    cases: list[dict[str, Any]] = []
    for seed, schedule in schedules.items():
        table = folder / f"order_{seed}.csv"
        table.write_text(write_table(schedule))
        cases.append({
            "number": seed, "stages": schedule.stages, "chunks": schedule.chunks, "placement": schedule.placement,
            "micro_batches": schedule.micro_batches, "table": str(table) if ranks > 1 else "",
        })  # fmt: skip
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-m", "mspc", "run", str(SCRIPT), "--ranks", str(ranks), "--", str(folder)]
    done = subprocess.run(
        command, env=mpirun_environment(), capture_output=True, text=True, timeout=WAIT, check=False, cwd=folder
    )
    if done.returncode:
        print(f"{ranks} ranks ended with status {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr)
    found: dict[int, dict[str, Any]] = {}
    for seed in schedules:
        path = folder / f"found_{seed}.npz"
        if path.exists():
            with np.load(path) as file:
                found[seed] = dict(file)
    return found


def difference(wanted: dict[str, Any], found: dict[str, Any]) -> float:
    """The largest, relative to numbers above one; infinite where values are missing."""
    if wanted.keys() != found.keys():
        return float("inf")
    return max(float(np.max(np.abs(found[name] - a) / np.maximum(1, np.abs(a)))) for name, a in wanted.items())


def wrong_ones(schedules: dict[int, Schedule], folder: Path, starts: Sequence[int] = (4, 3)) -> dict[int, str]:
    """Return the errors of schedules that are not as one device is. starts: numbers of ranks, of which each starts once
    and runs those whose stages divide it."""
    wanted = run_all(schedules, 1, folder / "one_device")
    found: dict[int, dict[str, Any]] = {}
    for ranks in starts:
        own = {seed: each for seed, each in schedules.items() if ranks % each.stages == 0}
        if own:
            found |= run_all(own, ranks, folder / f"ranks_{ranks}")
    wrong: dict[int, str] = {}
    for seed in schedules:
        apart = difference(wanted[seed], found[seed]) if seed in found else float("nan")
        if not apart <= TOLERANCE:
            wrong[seed] = "has not come to its end" if seed not in found else f"differs by {apart:.1e}"
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed that is drawn from")
    given = parser.parse_args()
    schedules = drawn(given.count, given.first)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        wrong = wrong_ones(schedules, Path(folder))
    kinds = Counter((each.stages, each.chunks // each.stages) for each in schedules.values())
    for (stages, chunks), number in sorted(kinds.items()):
        print(f"  {stages} stages, {chunks} chunks a stage: {number}")
    for seed, what in wrong.items():
        print(f"seed {seed} {what}")
    seconds = time.perf_counter() - start
    equal = len(schedules) - len(wrong)
    print(f"{len(schedules)} schedules, seeds {min(schedules)} to {max(schedules)}, run under MPI: "
          f"{equal} equal to one device, {len(wrong)} not; {seconds:.1f} s")  # fmt: skip
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
