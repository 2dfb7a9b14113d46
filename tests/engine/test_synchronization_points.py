"""Ranks that come to a point at which they need the others, who never come: the rank, the line and the remedy are
named, in a simulation and under mpirun."""

from __future__ import annotations

import linecache
import os
import subprocess
from pathlib import Path

import pytest

from mspc.commands.run import run_script
from mspc.engine.own_collectives import ALIKE, TOGETHER
from mspc.ir.diagnostics import MspcError
from tests.conftest import HANG
from tests.serving import SERVED

START = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor
from mindspore.communication import init, get_rank

init()
rank = get_rank()
"""
SHARDED = START + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(np.ones((4, 4), np.float32), name="w")
        self.matmul = ops.MatMul().shard(((1, 1), (1, 2)))

    def construct(self, x):
        return self.matmul(x, self.w)

net = Net()
net(Tensor(np.ones((2, 4), np.float32)))
if rank == 0:
    LINE
"""
STEPS = START + """
ms.set_auto_parallel_context(MODE)
net = nn.Dense(4, 3)
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
for rows in BATCHES[rank]:
    step(Tensor(np.ones((rows, 4), np.float32)), Tensor(np.ones((rows, 3), np.float32)))
"""
MODES = ('parallel_mode="data_parallel"', 'parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel"')
CALL = "step(Tensor(np.ones((rows, 4), np.float32)), Tensor(np.ones((rows, 3), np.float32)))"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    linecache.clearcache()  # every test has a file of that name
    return Path("occasion.py")


def line_of(text: str, line: str) -> int:
    return next(number for number, own in enumerate(text.splitlines(), 1) if own.strip() == line)


def simulated(script: Path, text: str) -> MspcError:
    script.write_text(text)
    with pytest.raises(MspcError) as caught:
        run_script(script, 2, simulate=True)
    return caught.value


def under_mpirun(script: Path, text: str) -> str:
    """What ranks that mpirun has started say on stderr, without Open MPI's own words and those of its event library."""
    script.write_text(text)
    command = [*SERVED, "run", str(script), "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG, env=dict(os.environ))
    assert done.returncode != 0
    own = done.stderr.partition("\n---")[0]
    return "\n".join(line for line in own.splitlines() if "PMIX ERROR" not in line and not line.startswith("[warn] "))


@pytest.mark.parametrize("line", [
    "ms.save_checkpoint(net, 'net.ckpt')", "net.w.asnumpy()", "print(net.w + 1)", "net.w.value().sum()",
])  # fmt: skip
def test_one_rank_reads_a_sharded_parameter(script, line):
    text = SHARDED.replace("LINE", line)
    found = simulated(script, text)
    where = f"occasion.py:{line_of(text, line)}"
    assert found.message == f"rank 0 reads the sharded parameter 'w' at {where}, but rank 1 has ended"
    assert found.notes == (f"the line is {line}", TOGETHER)
    assert found.exit_status == 1


def test_all_ranks_read_a_sharded_parameter(script):
    text = SHARDED.replace("if rank == 0:", "if True:").replace("LINE", "ms.save_checkpoint(net, 'net.ckpt')")
    script.write_text(text)
    run_script(script, 2, simulate=True)
    assert Path("net.ckpt").is_file()


@pytest.mark.parametrize("mode", MODES)
def test_one_rank_has_a_shorter_batch(script, mode):
    text = STEPS.replace("MODE", mode).replace("BATCHES", "([4, 4, 4], [4, 4, 3])")
    found = simulated(script, text)
    assert found.message.startswith(
        f"rank 1 calls TrainOneStepCell at occasion.py:{line_of(text, CALL)} with Float32 (3, 4), Float32 (3, 3), for "
        "which it has no graph, but rank 0 waits in "
    )
    assert found.notes == (f"the line is {CALL}", "before, it was called with Float32 (4, 4), Float32 (4, 3)", ALIKE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", ["", "4, "])
def test_the_ranks_have_different_short_batches(script, mode, before):
    batches = f"([{before}2], [{before}3])"
    found = simulated(script, STEPS.replace("MODE", mode).replace("BATCHES", batches))
    assert found.message == (
        "the ranks call TrainOneStepCell with different tensors: rank 0 with Float32 (2, 4), Float32 (2, 3); "
        "rank 1 with Float32 (3, 4), Float32 (3, 3)"
    )
    assert found.notes == (ALIKE,)
    assert found.location is not None
    assert found.location.text.strip() == CALL
    assert found.exit_status == 2


def test_one_rank_has_more_batches(script):
    text = STEPS.replace("MODE", MODES[0]).replace("BATCHES", "([4, 4], [4, 4, 2])")
    found = simulated(script, text)
    assert found.message == (
        f"rank 1 calls TrainOneStepCell at occasion.py:{line_of(text, CALL)} with Float32 (2, 4), Float32 (2, 3), for "
        "which it has no graph, but rank 0 has ended"
    )


def test_all_ranks_have_a_shorter_batch(script):
    script.write_text(STEPS.replace("MODE", MODES[0]).replace("BATCHES", "([4, 3, 4, 3], [4, 3, 4, 3])"))
    run_script(script, 2, simulate=True)


def test_under_mpirun_one_rank_saves(script):
    line = "ms.save_checkpoint(net, 'net.ckpt')"
    text = SHARDED.replace("LINE", line)
    assert under_mpirun(script, text) == (
        f"error: rank 0 reads the sharded parameter 'w' at occasion.py:{line_of(text, line)}, but rank 1 has ended\n"
        f"  note: the line is {line}\n  note: {TOGETHER}"
    )


def test_under_mpirun_one_rank_has_a_shorter_batch(script):
    text = STEPS.replace("MODE", MODES[0]).replace("BATCHES", "([4, 4], [4, 3])")
    assert under_mpirun(script, text) == (
        f"error: rank 1 calls TrainOneStepCell at occasion.py:{line_of(text, CALL)} with Float32 (3, 4), "
        "Float32 (3, 3), for which it has no graph, but rank 0 is in step 2, at AllReduce\n"
        f"  note: the line is {CALL}\n  note: before, it was called with Float32 (4, 4), Float32 (4, 3)\n"
        f"  note: {ALIKE}"
    )
