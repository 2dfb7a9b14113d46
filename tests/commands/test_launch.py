"""`mspc launch`: logs, what is printed, restarts, and mistakes in its options."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mspc.commands import launch as launch_command
from mspc.engine.ranks.worker import bind
from mspc.ir.diagnostics import MspcError
from tests.serving import HANG, SERVED, run_process

SCRIPT = """
import os, sys
from mindspore.communication import get_rank, init
init()
print("rank", get_rank(), sys.argv[1:], os.environ["RANK_ID"], os.environ["MSPC_RESTARTS"], flush=True)
if sys.argv[1] == "fail" and get_rank() == 1 and os.environ["MSPC_RESTARTS"] == "0":
    sys.exit(3)
"""


@pytest.fixture(autouse=True)
def folder(own_folder: Path) -> Path:
    Path("train.py").write_text(SCRIPT)
    return own_folder


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_process(sys.executable, "-m", "mspc", "launch", *arguments)


def served(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The work of the command once it is loaded; Python is served, too."""
    return run_process(*SERVED, "launch", *arguments)


def test_a_job_that_is_waited_for() -> None:
    done = launched("--worker_num=2", "--log_dir=logs", "--join=True", "--bind_core=True", "train.py", "one", "--two")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} ['one', '--two'] {rank} 0" for rank in range(2)]
    assert sorted(path.name for path in Path("logs").iterdir()) == ["scheduler.log", "worker_0.log", "worker_1.log"]
    assert Path("logs/worker_1.log").read_text() == "rank 1 ['one', '--two'] 1 0\n"


def test_a_job_that_fails_is_started_again() -> None:
    done = served(
        "--worker_num", "2", "--join", "True", "--tail_worker_log", "0", "--max-restarts", "2", "train.py", "fail"
    )
    assert done.returncode == 0
    assert done.stdout == "rank 0 ['fail'] 0 0\nrank 0 ['fail'] 0 1\n"
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"error: rank 1 ended the job with status 3; the end of \S+/worker_1.log:", lines[0])
    assert lines[1] == "  rank 1 ['fail'] 1 0"
    assert "sys.exit(3) at train.py:7" in lines[2]
    assert lines[-1] == "note: restart 1 of 2"


def test_a_job_that_goes_on_behind_the_command() -> None:
    done = launched("--worker_num", "2", "--log_dir", "logs", sys.executable, "-c", "print('here')")
    assert done.returncode == 0
    said = r"2 ranks started by process \d+; logs: \S+/logs/worker_{rank}.log, scheduler.log\n"
    assert re.fullmatch(said, done.stdout)
    limit = time.monotonic() + HANG
    logs = [Path(f"logs/worker_{rank}.log") for rank in range(2)]
    while not all(log.is_file() and log.read_text() == "here\n" for log in logs):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_what_would_be_started() -> None:
    Path("hosts").write_text("a slots=2\nb slots=2\n")
    done = served("--worker_num", "3", "--hostfile", "hosts", "--dry-run", "-x", "SECRET", "pytest", "--join", "-s")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "note: --join: pytest gets everything after it; options go before it\n"
    assert "-n 2 --host a:2 " in done.stdout
    assert " : -n 1 --host b:1 " in done.stdout
    assert "-x SECRET" in done.stdout
    assert done.stdout.endswith("pytest --join -s\n")


@pytest.mark.parametrize(("arguments", "message"), [
    (["no.py"], "error: there is no script 'no.py'"),
    (["--join", "maybe", "train.py"], "error: --join 'maybe' must be True or False"),
    (["--worker_num", "4", "--local_worker_num", "2", "train.py"],
     "error: 2 of the 4 ranks are on this host, but nothing names the other hosts"),
    (["--host", "a:1", "train.py"], "error: 8 ranks, but the hosts have 1 slot: a 1"),
    (["--host", "a:1", "--hostfile", "h", "train.py"], "error: --hostfile and --host both name hosts"),
    (["--hostfile", "none", "train.py"], "error: there is no host file 'none'"),
    (["--tail_worker_log", "8", "train.py"], "error: --tail_worker_log '8' must be -1 or ranks from 0 to 7"),
    (["--worker_log_name", "log", "train.py"], "error: --worker_log_name 'log' must be the name of a file with {rank}"),
    (["--bind_core", "{1", "train.py"], "error: --bind_core '{1' must be True, False, or cores by rank of a host"),
    (["nosuchcommand", "train.py"], "error: there is no script and no command 'nosuchcommand'"),
])  # fmt: skip
def test_mistakes(arguments: list[str], message: str) -> None:
    done = served(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert not list(Path().glob("*.log"))


@pytest.mark.parametrize("text", [
    '{"0": ["0-999999999999"]}', '{"0": ["3-1"]}', '{"nobody": ["0"]}', '{"8": ["0"]}', '{"0": ["²"]}', "[" * 9999,
])  # fmt: skip
def test_cores_that_no_host_has(text: str) -> None:
    with pytest.raises(MspcError, match="must be True, False, or cores by rank of a host"):
        launch_command._cores(text, 8)


@pytest.mark.parametrize("name", [
    "{rank:>99999999}", "{rank.real}", "{rank[0]}", "{rank", "{rank}\0", "x" * 200 + "{rank}",
])  # fmt: skip
def test_names_of_logs_that_cannot_be(name: str) -> None:
    with pytest.raises(MspcError, match=r"must be the name of a file with \{rank\} or"):
        launch_command._log_name(name, False)


def test_names_of_logs() -> None:
    assert launch_command._log_name("{rank:02d}.{local_rank}.log", True) == "{rank:02d}.{local_rank}.log"


def test_cores_that_this_host_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("os.sched_setaffinity", refuse)
    with pytest.raises(SystemExit, match="2"):
        bind('{"0": [7, 8]}', 0, 2)
    said = "error: --bind_core gives local rank 0 the cores 7, 8; this host lets it have 0, 1\n"
    assert capsys.readouterr().err == said
