"""ResNet-50's sample, narrow and on small images: both modes learn under mpirun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG
from tests.serving import SERVED


@pytest.fixture(scope="module")
def data(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic images in the real format."""
    folder = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin"
    maker = root / "samples/resnet50_cifar10/make_data.py"
    command = [sys.executable, str(maker), "--folder", str(folder), "--images", "32", "--test-images", "32"]
    subprocess.run(command, check=True, capture_output=True, timeout=HANG)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["data_parallel", "auto_parallel"])
def test_both_modes_learn(root: Path, data: Path, mode: str) -> None:
    script = root / "samples/resnet50_cifar10/resnet50_distributed_training.py"
    small = {"IMAGE_SIZE": "32", "WIDTH": "4", "EPOCHS": "3", "BATCH_SIZE": "16", "MODE": mode, "DATA_PATH": str(data)}
    command = [*SERVED, "run", str(script), "--ranks", "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=HANG, env={**os.environ, **small}
    )
    assert done.returncode == 0, done.stderr
    losses = [float(text) for text in re.findall(r"^epoch: \d step: 5, loss is (\S+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert len(re.findall(r"^accuracy: 0\.\d{3}$", done.stdout, re.MULTILINE)) == 1
