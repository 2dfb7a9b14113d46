"""The start of a job: the file that its ranks share, and ranks that come up but do not reach each other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mspc.engine.ranks.launcher import mpirun_command, mpirun_environment
from mspc.ir.diagnostics import ExecutionError
from mspc.runtime.faults.record import PID, JobFile
from mspc.runtime.faults.stopped import Start, in_group
from tests.conftest import HANG
from tests.runtime.faults.test_waiting import records

UNREACHABLE = """
import sys, time
from mspc.engine.job import join_job
from mspc.runtime.comm.mpi import MpiComm
from mspc.runtime.device_choice import DeviceOptions

def group(self, ranks):
    with self._waiting(ranks):
        time.sleep(3600)

MpiComm._group = group
join_job(DeviceOptions(timeout=1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of shared files, which is not the one of jobs that run beside the tests."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def name_of(folder: Path, job: str) -> Path:
    return folder / f"mspc-{os.getuid()}-{job}"


def test_ranks_share_one_file_of_zeros(folder: Path) -> None:
    name_of(folder, "job").write_bytes(b"left over")
    name_of(folder, "job").chmod(0o600)
    first = JobFile("job", 64)
    assert first.memory[:] == bytes(64)
    first.memory[3] = 7
    second = JobFile("job", 64)
    assert second.memory[3] == 7
    first.remove()
    second.remove()
    assert list(folder.iterdir()) == []


def test_files_of_killed_jobs_are_removed(folder: Path) -> None:
    running = JobFile("running", 64)
    for name in ("killed", "other"):
        name_of(folder, name).touch(0o600)
    (folder / "mspc-notes").touch(0o600)
    JobFile("job", 64)
    assert sorted(path.name.rpartition("-")[2] for path in folder.iterdir()) == ["job", "notes", "running"]
    running.remove()


@pytest.mark.parametrize("kind", ["symbolic link", "second name", "open to all", "folder", "fifo"])
def test_a_file_that_others_may_have_made_is_refused(kind: str, folder: Path) -> None:
    path, target = name_of(folder, "job"), folder / "target"
    target.write_text("kept")
    target.chmod(0o600)
    {
        "symbolic link": lambda: path.symlink_to(target), "second name": lambda: path.hardlink_to(target),
        "open to all": lambda: path.touch(0o600), "folder": path.mkdir, "fifo": lambda: os.mkfifo(path, 0o600),
    }[kind]()  # fmt: skip
    if kind == "open to all":
        path.chmod(0o666)
    with pytest.raises(ExecutionError, match=r"ranks cannot share memory in .*mspc-"):
        JobFile("job", 64)
    assert target.read_text() == "kept"
    assert path.exists(), "it is not ours to remove"


def test_no_memory_is_an_error_and_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ExecutionError, match="No space left on device"):
        JobFile("job", 64)
    assert list(folder.iterdir()) == []


def test_only_ranks_that_have_all_come_are_cut_off() -> None:
    found = records(3)
    start = Start(0, found)
    for record in found[:2]:  # rank 2 is on another host
        record[PID] = 1
    waits = [in_group(record, (0, 1, 2), 0) for record in found]
    waits[0].__enter__()
    assert [start.look(float(now)) for now in range(3)] == [0, 0, 0]
    waits[1].__enter__()
    assert [start.look(now) for now in (3.0, 3.5, 4.5)] == [1, 1.5, 2.5]
    assert start.look(5.0, stopped=[1]) == 0
    waits[1].__exit__()
    assert [start.look(now) for now in (5.5, 6.0)] == [0, 0.5]
    assert start.look(60.0) == 0, "this process itself was stopped"


def test_ranks_that_do_not_reach_each_other_end_the_job() -> None:
    environment = {**mpirun_environment(), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        mpirun_command(2, [sys.executable, "-c", UNREACHABLE]), env=environment, capture_output=True, text=True,
        timeout=HANG, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(said) == 1, done.stderr
    assert "waits before its first step for a message that MPI does not deliver: all ranks have come up" in said[0]
