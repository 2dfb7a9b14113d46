"""The messages of a job that has ended name the cause first."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.engine.ranks.hosts import Host
from mspc.engine.ranks.launcher import Ended, lost_host

KILLED = b"prterun noticed that process rank 1 with PID 7 on node a exited on signal 9 (Killed).\n"
AT = "error: rank 1 was killed or left without a word in step 3, at AllReduce\n  --> net.py:7:3"


def ended(folder: Path, status: int, said: bytes, *logs: str, begins: int = 0, printed: tuple[int, ...] = ()) -> Ended:
    paths = [folder / f"worker_{rank}.log" for rank in range(len(logs))]
    for path, text in zip(paths, logs, strict=True):
        path.write_text(text)
    return Ended(status, said, folder / "scheduler.log", paths, dict.fromkeys(range(len(logs)), begins),
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
