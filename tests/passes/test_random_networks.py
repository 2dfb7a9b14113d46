"""A training step of random networks with random strategies equals one device's, in float64 within 1e-12.

A thousand networks, in two processes with two seeds, and the seeds are printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import HANG

SEEDS = (20261121, 7)
COUNT = 500
WIDE = 50


def run_together(root: Path, module: str, count: int) -> str:
    """What two processes say that run a module's networks with two seeds; both must find none that differs."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(seed), str(count)],
            cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for seed in SEEDS
    ]  # fmt: skip
    said = "".join(job.communicate(timeout=HANG)[0] for job in jobs)
    print(said)
    assert [job.returncode for job in jobs] == [0, 0], said
    return said


def test_a_thousand_steps_equal_one_device(root: Path) -> None:
    run_together(root, "tests.random_networks", COUNT)


def test_steps_of_all_operators_equal_one_device(root: Path) -> None:
    """Two steps of each network; optimizers, clipping, dropout, integers, several results, recompute among them."""
    said = run_together(root, "tests.wide_networks", WIDE)
    operators = [int(number) for number in re.findall(r"with (\d+) operators", said)]
    assert len(operators) == 2
    assert min(operators) >= 60
