"""Whole runs on several GPUs beside the same runs on NumPy."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.runtime.device_choice import Probe
from tests.serving import succeed

COUNT, WHY = Probe().gpus()
if COUNT < 2:
    pytest.skip(f"needs two GPUs: {WHY or 'there is one'}", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")
ROOT = Path(__file__).resolve().parents[2]
DATA, TENSOR = (2, 2) if COUNT >= 4 else (1, 2)


def losses(*options: str) -> np.ndarray:
    """Losses of all ranks, [ranks, steps]."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    command = [
        find_mpirun(), "-n", str(DATA * TENSOR), "--oversubscribe", "--bind-to", "none", sys.executable, "-m", "mspc",
        "run", str(ROOT / "tests" / "gpu" / "losses_program.py"), *options, "--", str(DATA), str(TENSOR),
    ]  # fmt: skip
    done = succeed(*command, env={**mpirun_environment(), "PYTHONPATH": paths})
    found = sorted(re.findall(r"^rank (\d+): ([0-9a-f ]+)$", done.stdout, re.MULTILINE))
    assert len(found) == DATA * TENSOR
    return np.array([[np.frombuffer(bytes.fromhex(w), np.float32)[0] for w in words.split()] for _, words in found])


def test_losses_equal_numpys() -> None:
    ours, numpys = losses("--device", "gpu"), losses("--device", "cpu")
    assert (ours == ours[0]).all(), "the ranks' losses differ"
    np.testing.assert_allclose(ours[0], numpys[0], rtol=1e-3)
    assert ours[0][-1] < ours[0][0]


def test_deterministic_runs_are_bit_equal() -> None:
    first, second = (losses("--device", "gpu", "--deterministic") for _ in range(2))
    assert first.tobytes() == second.tobytes()
