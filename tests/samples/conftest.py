"""How the samples' tests run mspc: as a user does, from a folder of their own."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serving import SERVED, succeed

Run = Callable[..., str]
"""Runs `mspc ARGUMENTS` and returns its standard output."""


@pytest.fixture(scope="session")
def samples(root: Path) -> Path:
    return root / "samples"


def runs_in(folder: Path, samples: Path) -> Run:
    """`mspc(...)` with the samples' modules importable; fails with the error output of mspc."""
    # One BLAS thread: with more, small matrices wait for each other where the cores are shared.
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(samples.parent), str(samples / "operator_parallel")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "200",
    }

    def run(*arguments: Any) -> str:
        done = succeed(*SERVED, *map(str, arguments), cwd=folder, env=environment)
        return done.stdout

    return run


@pytest.fixture
def mspc(tmp_path: Path, samples: Path) -> Run:
    return runs_in(tmp_path, samples)


@pytest.fixture(scope="module")
def shared_mspc(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Run:
    """For what several tests compare with."""
    return runs_in(tmp_path_factory.mktemp("shared"), samples)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which a script finds `mspc`, which costs no start of its own, and `python`."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "mspc").write_text(f'#!/bin/sh\nexec {shlex.join(SERVED)} "$@"\n')
    (folder / "mspc").chmod(0o755)
    return {**os.environ, "PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])}


@pytest.fixture
def compiled(mspc: Run, tmp_path: Path) -> Callable[[Path], dict[str, Any]]:
    """The tables of `mspc compile SCRIPT --ranks 8`."""

    def tables(script: Path) -> dict[str, Any]:
        mspc("compile", script, "--ranks", 8, "--out", tmp_path / "out", "--json", tmp_path / "tables.json")
        return json.loads((tmp_path / "tables.json").read_text())

    return tables
