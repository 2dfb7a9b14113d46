"""Messages say what was so: who ended, why a rank waits, where memory ran out."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError
from mspc.runtime import buffers
from mspc.runtime.faults.record import PID, RUNNING, STATE, WORDS
from mspc.runtime.faults.stopped import Stopped, name_of, orphaned
from mspc.runtime.faults.watch import JobWatch
from tests.conftest import HANG
from tests.serving import SERVED

MESSAGES = """
import mspc as ms
from mspc import ops
from mspc.communication import get_rank, init
init()
ops.Receive(0, 1 - get_rank(), [4], ms.float32)()
"""


def test_ranks_that_only_receive_are_not_told_of_collectives(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MESSAGES)
    command = [*SERVED, "run", str(tmp_path / "net.py"), "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 1
    assert "each Receive(src_rank, sr_tag) needs a Send(dest_rank, sr_tag) of that rank" in done.stderr
    assert "must call the same collectives" not in done.stderr


LARGE = """
import numpy as np
from mspc import Parameter, Tensor, nn, ops
from mspc.common.initializer import initializer


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("ones", (8, 64)), name="w")

    def construct(self, x):
        product = ops.matmul(x, self.w)
        return ops.reduce_sum(ops.exp(product), 1)


print(Net()(Tensor(np.ones((4096, 8), np.float32))))
"""


def test_a_result_for_which_there_is_no_memory_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = buffers._aligned

    def full(size: int) -> Any:
        if size >= 4096 * 64 * 4:
            raise MemoryError
        return ordinary(size)

    monkeypatch.setattr(buffers, "_aligned", full)
    (tmp_path / "net.py").write_text(LARGE)
    with pytest.raises(MspcError) as raised:
        run_script(tmp_path / "net.py", 1, simulate=True)
    text = raised.value.render()
    assert "net.py:13:19: error: out of memory: MatMul" in text
    assert "product = ops.matmul(x, self.w)" in text
    assert "needs 1.0 MiB (1,048,576 bytes) for its result <Tensor[Float32], (4096, 64)>" in text


def test_a_parameter_for_which_there_is_no_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(LARGE.replace("(8, 64)", "(8, 1 << 44)"))
    with pytest.raises(MspcError, match="there is no memory for parameter 'w', <") as raised:
        run_script(tmp_path / "net.py", 1, simulate=True)
    assert "on rank 0" in raised.value.message


def test_a_stage_changes_nothing_only_where_the_network_is_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = LARGE.replace("print(Net()", "net = Net()\nnet.pipeline_stage = 1\nMORE\nprint(net")
    (tmp_path / "net.py").write_text(before.replace("MORE", ""))
    run_script(tmp_path / "net.py", 1, simulate=True)
    said = "net.py:18:1: Cell.pipeline_stage = 1 changes nothing here: there is one pipeline stage"
    assert said in capsys.readouterr().err
    (tmp_path / "net.py").write_text(
        before.replace("MORE", "import mspc\nmspc.set_auto_parallel_context(pipeline_stages=2)")
    )
    with pytest.raises(MspcError, match="pipeline_stages is 2, and the mode is stand_alone"):
        compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=2))
    assert "changes nothing" not in capsys.readouterr().err


def test_who_started_a_rank_is_named_as_it_is() -> None:
    of_this_host = "rank 2 ends in step 3: mpirun was killed or has lost a host"
    assert orphaned("mpirun", 2, "in step 3") == orphaned("prterun", 2, "in step 3") == of_this_host
    of_another_host = "rank 2 ends in step 3: prted, mpirun's part on this host, was killed or has lost mpirun's host"
    assert orphaned("prted", 2, "in step 3") == of_another_host
    assert name_of(os.getpid()) == Path("/proc/self/comm").read_text().strip() != ""
    assert name_of(2**30) == ""


class Watched:
    """The parts of a watch that `judge_stopped` needs: of two ranks the first runs, the other is a stopped process."""

    rank, size, patience = 0, 2, 15.0

    def __init__(self, pid: int) -> None:
        self.records = [np.zeros(WORDS, np.int64) for _ in range(2)]
        self.records[1][PID] = pid
        for record in self.records:
            record[STATE] = RUNNING
        self.failed = ""

    def record(self, rank: int) -> Any:
        return self.records[rank]

    def place(self, rank: int) -> MspcError:
        return MspcError("before its first step")

    def said(self, rank: int) -> str:
        return ""

    def end_job(self, rank: int, what: str, notes: Sequence[str]) -> None:
        self.failed = what


@pytest.fixture
def stopped_process() -> Iterator[int]:
    child = subprocess.Popen(["sh", "-c", "kill -STOP $$; exit"])
    limit = time.monotonic() + HANG
    while (state := Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert time.monotonic() < limit, state
    yield child.pid
    child.kill()
    child.wait()


def test_a_stopped_rank_has_the_seconds_that_it_was_promised(stopped_process: int) -> None:
    watch: Any = Watched(stopped_process)
    watch._halted = Stopped(watch.records)
    JobWatch.judge_stopped(watch, {1: 14.9})
    assert watch.failed == ""
    JobWatch.judge_stopped(watch, {1: 15.1})
    assert "rank 1 has been stopped for 15 s before its first step" in watch.failed


def test_a_traceback_that_was_shown_is_not_shown_again(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def fails():\n    raise ValueError('once')\n\n\nfails()\n")
    command = [*SERVED, "launch", "--worker_num", "2", "--log_dir", "logs", "--join", "True", "net.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("ValueError: once") == 1
    first = next(rank for rank in (0, 1) if f"rank {rank} ended the job" in done.stderr)
    assert f"; its output is in {tmp_path}/logs/worker_{first}.log" in done.stderr
