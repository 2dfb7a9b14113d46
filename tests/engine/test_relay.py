"""The output of ranks under an mpirun that mspc has started comes complete, and a job ends whose output goes
nowhere."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG

PRINTS = """
from mspc.communication import get_rank, init
init()
for number in range({lines}):
    print("line", number, "of", get_rank(), flush=number % 100 == 0)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "prints.py").write_text(PRINTS.format(lines=3000))
    return [sys.executable, "-m", "mspc", "run", str(tmp_path / "prints.py"), "--ranks", "2"]


def test_all_lines_come(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)
    assert sorted(done.stdout.splitlines()) == sorted(f"line {n} of {r}" for n in range(3000) for r in (0, 1))


def test_a_full_disk_is_told(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: cannot write to stdout: No space left on device"
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_enough_ends_the_job(command: list[str]) -> None:
    reader, writer = os.pipe()
    job = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert select.select([reader], [], [], HANG)[0], job.poll()
    os.read(reader, 10)
    os.close(reader)
    _, said = job.communicate(timeout=HANG)
    assert (job.returncode, "Traceback" in said) == (141, False)
