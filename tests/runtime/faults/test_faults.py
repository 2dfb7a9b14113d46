"""Under mpirun a rank that raises, exits or dies ends the job within 3 seconds, with one message about
the network."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mspc.engine.ranks.launcher import find_mpirun, mpirun_command, mpirun_environment
from mspc.ir.diagnostics import ExecutionError
from mspc.runtime.faults.call_log import VARIABLE
from mspc.runtime.faults.culprits import explain
from mspc.runtime.faults.formats.reading import read_records
from mspc.runtime.faults.record import PID, JobFile
from mspc.runtime.faults.stopped import Start, in_group
from tests.conftest import LOADED
from tests.printed_lines import lines_until
from tests.runtime.faults.test_waiting import records
from tests.serving import HANG, run_process
from tests.shares import is_taken

LIMIT = 3.0 * LOADED
AT_NODE = "in step 3, at TotalOfRanks 'reduce'"


def start(how: str, ranks: int = 3, records: Path | None = None) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("faulty_job.py")
    command = [
        find_mpirun(),
        "-n",
        str(ranks),
        "--oversubscribe",
        "--bind-to",
        "none",
        sys.executable,
        str(script),
        how,
    ]
    environment = {**mpirun_environment(), "PYTHONPATH": str(Path(__file__).parents[3])}
    if records is not None:
        environment[VARIABLE] = str(records)
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


FAULTS = {
    "raise": f"rank 1 failed {AT_NODE}",
    "exit 0": "rank 1 has ended while rank 0 waits for it: in step 4, at TotalOfRanks 'reduce'",
    "alone": "rank 0 waits for rank 1, which waits elsewhere: in step 4, at TotalOfRanks 'reduce'",
    "kill": f"rank 1 was killed or left without a word {AT_NODE}",
}
MORE = {"exit": FAULTS["raise"], "_exit": FAULTS["kill"]}
"""They end as others do, and are tried by `--thorough`."""


def test_a_failing_rank_ends_the_job_with_one_message(tmp_path: Path) -> None:
    """The jobs run at once, since they mostly wait."""
    faults = FAULTS | (MORE if is_taken(1) else {})
    jobs = {how: start(how, records=tmp_path / how) for how in faults}
    for how, job in jobs.items():
        out, err = job.communicate(timeout=HANG)
        over = time.time()
        assert job.returncode != 0
        assert over - float(out.split("event ")[1].split()[0]) < LIMIT
        said = [line for line in err.split("\n") if "rank" in line and "TotalOfRanks" in line]
        assert len(said) == 1, err
        # Ranks 0 and 2 wait for rank 1, and the one that sees its end first writes the message.
        assert faults[how] in said[0] or faults[how].replace("rank 0", "rank 2") in said[0]
        if how == "alone":
            assert "note: rank 1 is after step 3" in err
        if how == "raise":
            assert "ValueError: user code is wrong" in err
            assert "faulty_job.py" in err
        if how in ("kill", "_exit", "exit 0", "alone"):
            assert "net.py:12:5" in err
            assert "    out = self.op(x)" in err
        if how in ("kill", "exit 0"):
            assert f"note: mspc explain-hang {os.path.relpath(tmp_path / how)} compares the calls of the ranks" in err
        if how != "alone":
            records, _ = read_records([tmp_path / how])
            assert [record.rank for record in records] == [0, 1, 2]
            (found,) = explain(records, 3).explanations
            assert (found.rank, found.fault) == (1, "stopped before" if how == "exit 0" else "died")
            assert (found.end is not None and "user code is wrong at " in found.end.said) == (how == "raise")


def test_a_job_without_faults_ends_well() -> None:
    job = start("nothing")
    out, err = job.communicate(timeout=HANG)
    assert job.returncode == 0, err
    assert sorted(line for line in out.split("\n") if line.endswith("ended")) == [f"rank {r} ended" for r in range(3)]


def test_an_interrupt_ends_all_ranks() -> None:
    job = start("interrupt")
    lines_until(job, lambda lines: "event" in lines[-1])
    started = time.time()
    os.killpg(job.pid, signal.SIGINT)
    job.communicate(timeout=HANG)
    assert job.returncode != 0
    assert time.time() - started < LIMIT


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
    done = run_process(*mpirun_command(2, [sys.executable, "-c", UNREACHABLE]), env=environment)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(said) == 1, done.stderr
    assert "waits before its first step for a message that MPI does not deliver: all ranks have come up" in said[0]
