"""The samples' run scripts and rank tables are what `mspc launch` takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.engine.ranks.hosts import read_rank_table
from tests.conftest import HANG

SCRIPTS = {
    "quickstart/run_with_msrun.sh": ([], "-n 8 ", "mspc run net.py"),
    "resnet50_cifar10/run.sh": (["data", "2"], "--host 127.0.0.1:2 ", "pytest -s -v resnet50_distributed_training.py"),
}


@pytest.mark.parametrize("ranks", [2, 8])
def test_rank_tables(samples: Path, ranks: int) -> None:
    (host,) = read_rank_table(samples / f"resnet50_cifar10/rank_table_{ranks}pcs.json")
    assert (host.name, host.slots, host.devices) == ("127.0.0.1", ranks, tuple(range(ranks)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_run_scripts(samples: Path, tmp_path: Path, name: str) -> None:
    """With an `mspc` on PATH that adds --dry-run."""
    arguments, where, command = SCRIPTS[name]
    mspc = tmp_path / "mspc"
    mspc.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -m mspc launch --dry-run "$@"\n')
    mspc.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(samples / name), *arguments], capture_output=True, text=True, check=False, timeout=HANG,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert where in done.stdout
    assert done.stdout.rstrip("\n").endswith(command)
