"""The messages of a job that has ended name the cause first."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mspc.engine.ranks import environment
from mspc.engine.ranks.hosts import Host, check_slots, read_host_file, read_hosts, read_rank_table
from mspc.engine.ranks.launcher import EndedJob, failed_rank, find_mpirun, lost_host, mpirun_command
from mspc.ir.diagnostics import MspcError
from mspc.ops.cpu.blocks import thread_count
from tests.errors import error_of
from tests.serving import HANG
from tests.serving.client import SERVER

KILLED = b"prterun noticed that process rank 1 with PID 7 on node a exited on signal 9 (Killed).\n"
AT = "error: rank 1 was killed or left without a word in step 3, at AllReduce\n  --> net.py:7:3"


def ended(
    folder: Path, status: int, said: bytes, *logs: str, begins: int = 0, printed: tuple[int, ...] = ()
) -> EndedJob:
    paths = [folder / f"worker_{rank}.log" for rank in range(len(logs))]
    for path, text in zip(paths, logs, strict=True):
        path.write_text(text)
    return EndedJob(status, said, folder / "scheduler.log", paths, dict.fromkeys(range(len(logs)), begins),
                 lambda rank: rank in printed, (Host("198.51.100.1", 1), Host("198.51.100.2", 2)))  # fmt: skip


@pytest.mark.parametrize(("said", "lost"), [
    (b"HNP daemon   : [prterun-a-2101@0,0] on node a\n  Remote daemon: [prterun-a-2101@0,3] on node b\n", (3, "b")),
    (b"    Local host:    a\n    Remote host:   b\n    Daemon exit status: 137\n", (0, "b")),
    (b"Process name: [prterun-a-9@1,2]\n", None),
])  # fmt: skip
def test_the_host_that_mpirun_has_lost(said: bytes, lost: tuple[int, str] | None) -> None:
    assert lost_host(said) == lost


def test_of_a_killed_rank_others_say_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path, 137, KILLED, "loss 1\n", "loss 2\n", f"loss 3\n{AT}\n").explain()
    end = f"note: rank 1 ended the job with status 137; the end of {tmp_path}/worker_1.log:\n  loss 2\n"
    assert capsys.readouterr().err == f"{AT}\n{end}"


def test_what_was_printed_or_said_in_an_earlier_start_is_not_said_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = f"error: rank 1 ended the job with status 137; the end of {tmp_path}/worker_1.log:\n  \n"
    ended(tmp_path, 137, KILLED, f"{AT}\n", "", printed=(0,)).explain()
    assert capsys.readouterr().err == error
    ended(tmp_path, 137, KILLED, f"{AT}\n", "", begins=len(AT) + 1).explain()
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(("number", "ranks"), [(1, "rank 0"), (2, "ranks 1 to 2")])
def test_of_a_lost_host_its_ranks_and_where_another_rank_was(
    number: int, ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"Remote daemon: [prterun-a-2101@0,{number}] on node b\n".encode()
    words = "error: rank 0 ends in step 5, at MatMul 'a: b': mpirun was killed or has lost a host\n"
    ended(tmp_path, 1, said, words, "", "").explain()
    assert capsys.readouterr().err == (
        f"error: the host b is lost: mpirun's part there does not answer any more ({ranks}); "
        "rank 0 was in step 5, at MatMul 'a: b'\n"
    )


def test_an_mpirun_that_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path, -9, b"", "error: rank 0 ends after step 2: mpirun was killed or has lost a host\n").explain()
    said = "error: mpirun was ended by SIGKILL, and its ranks with it; rank 0 was after step 2\n"
    assert capsys.readouterr().err == said


# Hosts of host files, lists and rank tables, and mpirun's command line for them.


def device(number: int, rank: int) -> dict[str, str]:
    return {"device_id": str(number), "device_ip": f"192.1.27.{number}", "rank_id": str(rank)}


def table(*servers: tuple[str, list[tuple[int, int]]]) -> dict[str, Any]:
    listed = [{"server_id": name, "device": [device(*d) for d in devices]} for name, devices in servers]
    return {"version": "1.0", "server_count": str(len(listed)), "server_list": listed, "status": "completed"}


def older(*entries: tuple[str, int, int]) -> dict[str, Any]:
    listed = [
        {"devices": [{"device_id": str(number), "device_ip": "192.1.27.6"}], "rank_id": str(rank), "server_id": name}
        for name, number, rank in entries
    ]
    return {"board_id": "0x0000", "group_list": [{"device_num": "2", "instance_list": listed}], "status": "completed"}


def test_a_host_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two hosts\nnode-a slots=8\n\n10.0.0.2 slots = 4 max_slots=4  # an address\nnode-c\n")
    assert read_host_file(path) == [Host("node-a", 8), Host("10.0.0.2", 4), Host("node-c", 1)]


@pytest.mark.parametrize(("text", "message"), [
    ("a slots=0\n", "hosts:1: error: slots=0 of host 'a' must be 1 or more, and below a million"),
    ("a\nb cores=3\n", "hosts:2: error: a line of a host file is NAME slots=N"),
    ("a\na slots=2\n", "hosts:2: error: host 'a' is twice in the host file"),
    ("-x\n", "hosts:1: error: a line of a host file is NAME slots=N"),
    ("# nobody\n", "the host file 'hosts' names no host"),
    ("a slots=²\n", "hosts:1: error: slots=² of host 'a' must be 1 or more, and below a million"),
    (f"a slots={'9' * 5000}\n", f"hosts:1: error: slots={'9' * 40} of host 'a' must be 1 or more, and below a million"),
    ("a\tmax_slots=3\n", "hosts:1: error: a line of a host file is NAME slots=N"),
])  # fmt: skip
@pytest.mark.usefixtures("own_folder")
def test_damaged_host_files(text: str, message: str) -> None:
    Path("hosts").write_text(text, encoding="utf-8")
    assert message in str(error_of(read_host_file, Path("hosts")))


def test_hosts_of_a_list() -> None:
    assert read_hosts("a:2,10.0.0.1:3,c") == [Host("a", 2), Host("10.0.0.1", 3), Host("c", 1)]
    wrong = {"a:x": "'a:x' is no NAME or NAME:SLOTS", "a:²": "'a:²' is no NAME", "a,a:2": "'a' is there twice"}
    for text, message in wrong.items():
        with pytest.raises(MspcError, match=message):
            read_hosts(text)


def test_more_ranks_than_slots() -> None:
    with pytest.raises(MspcError, match="9 ranks, but the hosts have 6 slots: a 4, b 2"):
        check_slots([Host("a", 4), Host("b", 2)], 9)


def test_rank_tables(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(("10.0.0.1", [(0, 0), (1, 1)]), ("10.0.0.2", [(4, 3), (5, 2)]))))
    assert read_rank_table(path) == [Host("10.0.0.1", 2, (0, 1)), Host("10.0.0.2", 2, (5, 4))]
    path.write_text(json.dumps(older(("a", 0, 0), ("b", 0, 1), ("a", 1, 2))))
    assert read_rank_table(path) == [Host("a", 1, (0,)), Host("b", 1, (0,)), Host("a", 1, (1,))]


@pytest.mark.parametrize(("content", "message"), [
    (table(("a", [(0, 0), (1, 0)])), "has rank 0 twice: on server 'a' and on 'a'"),
    (table(("a", [(0, 0), (1, 2)])), "has no rank 1, but rank 2"),
    (table(("a", [(0, 0), (0, 1)])), "has device 0 of server 'a' twice"),
    (table(), "names no rank"),
    (table(("a", [(0, -1)])), "is none: rank_id is '-1', not a number"),
    ({"version": "1.0"}, "has no 'group_list'"),
    (table(("", [(0, 0)])), "is none: '' is no server_id"),
    ([], "is none: "),
    (table(("a b", [(0, 0)])), "is none: 'a b' is no server_id"),
    (table(("a", [(0, int("9" * 12))])), "is none: rank_id is '999999999999', not a number"),
    ({"group_list": [{"instance_list": [{"devices": [], "rank_id": "0", "server_id": "a"}]}]}, "is none: list index"),
])  # fmt: skip
def test_damaged_rank_tables(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    assert f"the rank table {str(path)!r} {message}" in str(error_of(read_rank_table, path))


@pytest.mark.parametrize(("content", "message"), [
    (b"[" * 100_000, "{} is no JSON: brackets stand too deep in brackets"),
    (b'{"server_list": [], "server_list": []}', "{} is no JSON: it has an entry 'server_list' twice"),
    (b"\xff", "{} is no JSON: "),
    (None, "{} is a FIFO, not a file"),
])  # fmt: skip
def test_rank_tables_that_are_none(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    os.mkfifo(path) if content is None else path.write_bytes(content)
    assert error_of(read_rank_table, path).message.startswith(message.format(str(path)))


def test_mpirun_gets_ranks_host_by_host() -> None:
    hosts = [Host("a", 2, (4, 5)), Host("b", 2), Host("c", 2)]
    words = mpirun_command(3, ["work", "it"], hosts, ["DATA_PATH"])
    assert words[0] == find_mpirun()
    assert words[words.index("-x") :] == [
        "-x", "DATA_PATH", "-n", "2", "--host", "a:2", "-x", "MSPC_DEVICES=4,5", "work", "it",
        ":", "-n", "1", "--host", "b:1", "work", "it",
    ]  # fmt: skip


@pytest.mark.parametrize(("said", "rank"), [
    (b"   Process name: [prterun-vm-9@1,12]\n   Exit code:    1\n", 12),
    (b"prterun noticed that process rank 3 with PID 0 on node vm exited on\nsignal 9 (Killed).\n", 3),
    (b"nothing of the kind", None),
])  # fmt: skip
def test_the_rank_that_mpirun_names(said: bytes, rank: int | None) -> None:
    assert failed_rank(said) == rank


# Variables of its launcher that a rank reads.


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 2), (16, 1)])
def test_ranks_of_one_machine_share_its_cores(ranks: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name, value in (("SIZE", ranks), ("LOCAL_RANK", 0), ("LOCAL_SIZE", ranks)):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    environment.limit_threads()
    assert thread_count.__wrapped__() == count


SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_TASKS_PER_NODE": "2(x3)"}


@pytest.mark.parametrize(("variables", "expected"), [
    ({**SRUN, "PMIX_RANK": "5"}, (5, 6, 1, 2)),
    ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "6", "PMI_FD": "9"}, (5, 6, 1, 2)),
    (SRUN, (0, 1, 0, 1)),  # a batch script: srun speaks of tasks there, but started no rank
], ids=["PMIx", "PMI2", "batch"])  # fmt: skip
def test_ranks_that_srun_starts(
    variables: dict[str, str], expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tuple(environment.place().values())[:4] == expected
    assert environment.mpi_size() == (expected[1] if "PMIX_RANK" in variables or "PMI_RANK" in variables else 0)


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
