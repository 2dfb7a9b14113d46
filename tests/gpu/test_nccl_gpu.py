"""Collectives between real GPUs, and what happens when a rank is lost; skipped with fewer than two."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.runtime.device_choice import Probe
from tests.serving import HANG

COUNT, WHY = Probe().gpus()
if COUNT < 2:
    pytest.skip(f"needs two GPUs: {WHY or 'there is one'}", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")
RANKS = 4 if COUNT >= 4 else 2
ROOT = Path(__file__).resolve().parents[2]


PROGRAM = [sys.executable, str(ROOT / "tests" / "gpu" / "nccl_program.py")]
APART = {
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1",
    "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET",
}  # fmt: skip
"""The variable that makes NCCL treat the GPUs of one host as those of several."""
NAMED = ["unshare", "-u", "sh", "-c", 'hostname "host$OMPI_COMM_WORLD_RANK" && exec "$@"', "sh"]
"""Gives every rank a host name of its own."""


def on_ranks(command: list[str], timeout: float = HANG, **variables: str) -> tuple[int, str, str, float]:
    """(status, output, errors, time of the end) of a command on several GPUs."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {**mpirun_environment(), "PYTHONPATH": os.pathsep.join(paths), **variables}
    done = subprocess.run(
        [find_mpirun(), "-n", str(RANKS), "--oversubscribe", "--bind-to", "none", *command],
        env=environment, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr, time.time()


def program(*arguments: str) -> tuple[int, str, str, float]:
    return on_ranks([*PROGRAM, *arguments])


def test_every_collective_equals_numpy() -> None:
    status, out, err, _ = program("check")
    assert status == 0, err[-6000:]
    assert sum("checked" in line for line in out.splitlines()) == RANKS
    assert " 0 directly" not in out, "GPUs of this host do not reach each other's memory"


def test_every_gradient_equals_numpy() -> None:
    status, out, err, _ = program("every")
    assert status == 0, err[-6000:]
    assert sum("results of steps" in line for line in out.splitlines()) == RANKS


def test_rows_equal_numpys() -> None:
    status, out, err, _ = on_ranks([sys.executable, str(ROOT / "tests" / "gpu" / "rows_program.py")])
    assert status == 0, err[-6000:]
    assert sum("exchanges" in line for line in out.splitlines()) == RANKS
    assert sum("made equal steps" in line for line in out.splitlines()) == RANKS


@pytest.mark.parametrize("name", ["public", "mint"])
def test_what_scripts_call(name: str) -> None:
    script = ROOT / "tests" / "ops" / "collective" / f"{name}_program.py"
    status, out, err, _ = on_ranks([sys.executable, "-m", "mspc", "run", "--device", "gpu", str(script)])
    assert status == 0, err[-6000:]
    assert sorted(out.splitlines()) == [f"rank {rank} is right" for rank in range(RANKS)]


def test_between_hosts() -> None:
    """Every rank under a host name of its own; nothing but sockets between them."""
    if subprocess.run(["unshare", "-u", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no host names to single processes")
    status, out, err, _ = on_ranks([*NAMED, *PROGRAM, "check"], **APART)
    assert status == 0, err[-6000:]
    lines = out.splitlines()
    assert sum("checked" in line and " 0 directly" in line for line in lines) == RANKS, out[-6000:]
    assert any("via NET/Socket" in line for line in lines), out[-6000:]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages_on_several_hosts(schedule: str) -> None:
    """Messages go through NCCL where a GPU cannot reach another's memory."""
    if subprocess.run(["unshare", "-u", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no host names to single processes")
    script = str(ROOT / "tests" / "gpu" / "stages_program.py")
    status, out, err, _ = on_ranks(
        [*NAMED, sys.executable, "-m", "mspc", "run", "--device", "gpu", script, "--", schedule], **APART
    )
    assert status == 0, err[-6000:]
    losses = [float(line.split()[1]) for line in out.splitlines() if line.startswith("loss ")]
    assert losses == pytest.approx([90.5626526, 67.1880951, 47.6730423, 37.9922104, 33.454277, 30.915432], rel=2e-5)


@pytest.mark.parametrize("size", ["4", "1000000"], ids=["through a mailbox", "directly"])
@pytest.mark.parametrize(
    ("how", "message", "limit"),
    [
        ("hang", f"rank 0 waits in step 3 at AllReduce 'w' (ranks 0-{RANKS - 1}) for rank 1, which has not begun", 30),
        ("kill", "rank 1 was killed or left without a word", 5),
    ],
)
def test_a_lost_rank_ends_the_job(how: str, message: str, limit: float, size: str) -> None:
    status, out, err, over = program(how, size)
    assert status != 0
    assert message in err, err[-6000:]
    assert over - float(out.split("event ")[1].split()[0]) < limit


@pytest.mark.parametrize("size", ["4", "1000000"], ids=["through a mailbox", "directly"])
def test_a_paused_rank_is_waited_for(size: str) -> None:
    status, _, err, _ = program("pause", size)
    assert status == 0, err[-6000:]
    assert "note: rank 1 has been stopped for 3 s" in err, err[-6000:]


@pytest.mark.parametrize("size", ["4", "1000000"], ids=["through a mailbox", "directly"])
def test_a_rank_that_stays_stopped_ends_the_job(size: str) -> None:
    status, out, err, over = program("stop", size)
    assert status != 0
    assert "error: rank 1 has been stopped for 20 s" in err, err[-6000:]
    assert over - float(out.split("event ")[1].split()[0]) < 30
