"""Collectives between real GPUs, and what happens when a rank is lost; skipped with fewer than two."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from mspc.runtime.choose import Probe
from tests.conftest import HANG

COUNT, WHY = Probe().gpus()
if COUNT < 2:
    pytest.skip(f"needs two GPUs: {WHY or 'there is one'}", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")
RANKS = 4 if COUNT >= 4 else 2
ROOT = Path(__file__).resolve().parents[2]


def program(*arguments: str, timeout: float = HANG) -> tuple[int, str, str, float]:
    """(status, output, errors, time of the end) of `nccl_program.py` on several GPUs."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    command = [
        find_mpirun(), "-n", str(RANKS), "--oversubscribe", "--bind-to", "none",
        sys.executable, str(ROOT / "tests" / "gpu" / "nccl_program.py"), *arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**mpirun_environment(), "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr, time.time()


def test_every_collective_equals_numpy() -> None:
    status, out, err, _ = program("check")
    assert status == 0, err[-6000:]
    assert sum("checked" in line for line in out.splitlines()) == RANKS
    assert " 0 directly" not in out, "GPUs of this host do not reach each other's memory"


@pytest.mark.parametrize("size", ["4", "1000000"], ids=["through a mailbox", "directly"])
@pytest.mark.parametrize(
    ("how", "message", "limit"),
    [
        ("hang", f"rank 0 waits in step 3 at AllReduce 'w' (ranks 0-{RANKS - 1}) for rank 1, which has not begun", 30),
        ("kill", "rank 1 was killed or left without a word", 5),
    ],
)
def test_a_lost_rank_ends_the_job(how: str, message: str, limit: float, size: str) -> None:
    status, out, err, over = program(how, size)
    assert status != 0
    assert message in err, err[-6000:]
    assert over - float(out.split("event ")[1].split()[0]) < limit
