"""Benchmarks that run on a CPU start as the README prints them, from an environment that holds next to nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG

NETWORK = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")

class Net(nn.Cell):
    def construct(self, x):
        return ops.relu(x)

Net()(Tensor(np.ones((4, 8)), ms.float32))
"""


def benchmark(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "CI": "true"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )


def test_start_up(root: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    done = benchmark(root, "benchmarks/start_up.py", "--ranks", "2", "--script", str(tmp_path / "net.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("net.py, 2 ranks, the slowest: first step ")


def test_start_up_hands_on_what_is_wrong(root: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("1 +\n")
    done = benchmark(root, "benchmarks/start_up.py", "--ranks", "2", "--script", str(tmp_path / "net.py"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["benchmarks/compile.py", "--help"], ["benchmarks/scale.py", "--help"], ["benchmarks/cpu_step.py", "--help"],
        ["-m", "benchmarks.redistribution", "--help"], ["benchmarks/executor.py"],
        ["benchmarks/input.py", "--help"], ["benchmarks/cpu_resnet.py", "--help"],
        ["-m", "benchmarks.checkpoints", "--help"], ["-m", "benchmarks.gpu.networks.compare", "--help"],
    ],
)  # fmt: skip
def test_others_begin(root: Path, arguments: list[str]) -> None:
    done = benchmark(root, *arguments)
    assert done.returncode == 0, done.stderr
