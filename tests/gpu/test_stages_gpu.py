"""Stages of a pipeline on real GPUs give the losses of the CPU by every schedule; skipped with fewer than two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mspc.runtime.device_choice import Probe
from tests.conftest import HANG

COUNT, WHY = Probe().gpus()
if COUNT < 2:
    pytest.skip(f"needs two GPUs: {WHY or 'there is one'}", allow_module_level=True)
RANKS = 4 if COUNT >= 4 else 2
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "gpu" / "stages_program.py"


def losses(schedule: str, device: str, *options: str) -> list[float]:
    command = [sys.executable, "-m", "mspc", "run", str(PROGRAM), "--ranks", str(RANKS), "--device", device, *options]
    done = subprocess.run([*command, "--", schedule], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble_h1", "zero_bubble_v"])
def test_losses_are_those_of_the_cpu(schedule: str) -> None:
    found, wanted = losses(schedule, "gpu"), losses(schedule, "cpu", "--simulate")
    assert len(found) == 6
    assert found == pytest.approx(wanted, rel=2e-5)

