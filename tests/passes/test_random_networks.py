"""A training step of random networks with random strategies equals one device's, in float64 within 1e-12.

A thousand networks, in two processes with two seeds, and the seeds are printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import HANG

SEEDS = (20261121, 7)
COUNT = 500


def test_a_thousand_steps_equal_one_device(root: Path) -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.random_networks", str(seed), str(COUNT)],
            cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for seed in SEEDS
    ]  # fmt: skip
    said = [job.communicate(timeout=HANG)[0] for job in jobs]
    print("".join(said))
    assert [job.returncode for job in jobs] == [0, 0], "".join(said)
