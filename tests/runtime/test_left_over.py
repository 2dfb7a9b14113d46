"""A run that is killed, whichever process it is, leaves no process and no file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mspc.runtime.faults.stopped import shared_segments
from tests.printed_lines import lines_until
from tests.serving import HANG

SCRIPT = """
import os, time
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")

class Net(nn.Cell):
    def construct(self, x):
        return ops.relu(x)

Net()(Tensor(np.ones((4, 8)), ms.float32))
print("rank", os.getpid(), os.getppid(), flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs the files of processes")
@pytest.mark.parametrize(
    ("killed", "number"),
    [
        ("rank", signal.SIGKILL),
        ("mpirun", signal.SIGKILL),
        ("command", signal.SIGKILL),
        ("command", signal.SIGTERM),
    ],
)
def test_nothing_stays_of_a_killed_run(killed: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SCRIPT)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    job = subprocess.Popen(
        [sys.executable, "-m", "mspc", "run", "net.py", "--ranks", "2"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    with job:
        lines = [line.split() for line in lines_until(job, lambda lines: len(lines) == 2)]
        ranks, mpirun = [int(line[1]) for line in lines], int(lines[0][2])
        segments = shared_segments(f"/proc/{ranks[0]}/maps")
        assert list(temporary.iterdir())
        os.kill({"rank": ranks[1], "mpirun": mpirun, "command": job.pid}[killed], number)
        job.wait(HANG)
        assert job.returncode != 0
    end = time.monotonic() + HANG
    while time.monotonic() < end:
        left = [pid for pid in (*ranks, mpirun) if _runs(pid)]
        left += [path for path in segments if os.path.exists(path)]
        left += list(temporary.iterdir())
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"{left} stayed")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_shared_segments_are_read_from_the_map_of_a_process(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 rw-s 00000000 00:1a 7 /dev/shm/sm_segment.host.0.5d060001.0\n"
        "7f00-7f01 rw-s 00000000 00:1a 7 /dev/shm/sm_segment.host.0.5d060001.1 (deleted)\n"
        "7f01-7f02 rw-s 00000000 00:1a 7 /dev/shm/mine\n"
        "7f01-7f02 rw-p 00000000 00:00 0 [stack]\n"
    )
    assert shared_segments(str(maps)) == ["/dev/shm/sm_segment.host.0.5d060001.0"]
    assert shared_segments(str(tmp_path / "none")) == []
