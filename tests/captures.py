"""Captures of a script of PyTorch for tests of captured steps."""

import os
import shutil
from pathlib import Path

import pytest

from tests.serving import SERVED, succeed

SCRIPT = Path(__file__).parent / "readers" / "pytorch" / "captured_training.py"
SHARED = {"single": (1, 1, 1), "ranks": (4, 2, 2), "wrong": (4, 2, 2, "doubled sum")}
"""Ranks and arguments of the captures that modules share: one device, FSDP over two groups of ranks with tensor
parallelism within each, and the same with a sum too many."""


def captured(
    folder: Path, ranks: int, *arguments: object, options: tuple[str, ...] = (), script: Path = SCRIPT
) -> Path:
    """Capture a script in a folder, which is returned."""
    command = [*SERVED, "capture", script, "--ranks", ranks, "--out", folder, *options, "--", *arguments]
    succeed(*map(str, command))
    return folder


def shared(name: str, factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a capture in `SHARED`, which all processes of a test run make once. Nobody changes it."""
    room = factory.getbasetemp()
    folder = (room.parent if "PYTEST_XDIST_WORKER" in os.environ else room) / f"shared_{name}"
    if not folder.exists():
        own = captured(factory.mktemp("capture") / name, *SHARED[name], options=("--values",) * (name == "single"))
        try:
            own.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(own)
    return folder
