"""Processes that mspc starts import nothing from the working folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG
from tests.serving.client import SERVER

ROOT = Path(__file__).resolve().parents[3]
TRAPS = ("mspc", "random", "json", "numpy", "struct")
SCRIPT = """
import helper, extra
from mindspore.communication import get_rank, init
init()
print("rank", get_rank(), helper.NAME, extra.NAME, flush=True)
"""


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """Return a folder whose modules have the names of mspc's own, beside a script and the modules that it imports."""
    files = {f"trap/{name}.py": "raise SystemExit('caught')" for name in TRAPS}
    files |= {"scripts/train.py": SCRIPT, "scripts/helper.py": "NAME = 'helper'", "path/extra.py": "NAME = 'extra'"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "trap"


def test_ranks_take_no_module_of_the_working_folder(trap: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != SERVER}
    given = os.pathsep.join(filter(None, [str(trap.parent / "path"), environment.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mspc", "run", "--ranks", "2", "../scripts/train.py"], cwd=trap,
        capture_output=True, text=True, env=environment | {"PYTHONPATH": given}, timeout=HANG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        f"rank {rank} helper extra" for rank in range(2)
    ]


def test_every_python_process_is_started_without_the_working_folder() -> None:
    """Whichever module starts one: `python -m` alone would import from there."""
    found = [
        (str(path.relative_to(ROOT)), command)
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in (".venv", "build", "tests", "benchmarks", "samples", "docs")
        for command in re.findall(r'\[sys\.executable,\s*"?([^",]*)', path.read_text(encoding="utf-8"))
    ]
    assert len(found) >= 3
    assert [each for each in found if each[1] not in ("-P", "-I")] == []
