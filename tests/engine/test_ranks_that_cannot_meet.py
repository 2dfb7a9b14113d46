"""Ranks that are not there, that cannot meet or that run another mspc: refused with status 2 and a way out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from tests.conftest import HANG
from tests.serving import SERVED

SCRIPT = """
import mspc as ms
from mspc import nn
from mspc.communication import init
ms.set_auto_parallel_context(parallel_mode="data_parallel")
init()
print(nn.ReLU()(ms.Tensor([1.0, -1.0])))
"""
TEST = """
import mindspore as ms, numpy as np, pytest
from mindspore import nn, ops, Tensor
class Net(nn.Cell):
    def __init__(self, strategy):
        super().__init__()
        self.matmul, self.w = ops.MatMul().shard(strategy), ms.Parameter(Tensor(np.ones((32, 64)), ms.float32), "w")
    def construct(self, x):
        return self.matmul(x, self.w)
x, y = np.ones((16, 32), np.float32), np.ones((16, 64), np.float32)
def test_alone():
    ms.set_auto_parallel_context(device_num=8, global_rank=0)
    assert nn.ReLU()(Tensor([1.0, -1.0])).asnumpy().tolist() == [1, 0]
def test_sharded():
    ms.set_auto_parallel_context(device_num=8, global_rank=0, parallel_mode="semi_auto_parallel", full_batch=True)
    out = Net(((2, 4), (4, 1)))(Tensor(x))
    assert (out.shape, out.dtype) == ((16, 64), ms.float32)
    with pytest.raises(RuntimeError, match=r"Net has no values: the test compiled it for 8 ranks in memory"):
        out.asnumpy()
    with pytest.raises(RuntimeError, match="the strategy .* needs 16 ranks, but there are 8"):
        Net(((2, 8), (8, 1)))(Tensor(x))
def test_trained():
    net = Net(((2, 4), (4, 1)))
    data = ms.dataset.NumpySlicesDataset((x[None].repeat(2, 0), y[None].repeat(2, 0)), ["x", "y"])
    ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9)).train(1, data, dataset_sink_mode=False)
    assert net.w.asnumpy().max() == 1, "no rank ran"
"""


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, *arguments, **variables)


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | variables, timeout=HANG,
        check=False,
    )  # fmt: skip


def test_rank_size_without_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SCRIPT)
    for command in ([sys.executable, "net.py"], [*SERVED, "run", "net.py"]):
        done = run(*command, RANK_SIZE="4", RANK_ID="1")
        assert done.returncode == 2
        assert done.stderr.startswith("net.py:6:1: error: init: RANK_SIZE is 4, but no launcher has started the ranks")
        assert "mspc run SCRIPT --ranks 4, mspc launch, or mpirun -n 4" in done.stderr
        assert done.stdout == ""
    assert run(*SERVED, "run", "net.py", "--ranks", "1", RANK_SIZE="4").returncode == 0


def test_device_num_without_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SCRIPT.replace('"data_parallel"', '"data_parallel", device_num=4'))
    done = python("net.py")
    assert done.returncode == 2
    assert "net.py:5:1: error: the script sets device_num=4, but runs on one rank\n" in done.stderr
    assert "note: start it with mspc run SCRIPT --ranks 4, or under mpirun -n 4" in done.stderr


def test_another_version_among_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SCRIPT)
    Path("other.py").write_text("import mspc.api\nmspc.api.VERSION = '9.9'\n" + SCRIPT)
    command = [find_mpirun(), "--oversubscribe", "-n", "1", sys.executable, "net.py", ":", "-n", "1", sys.executable,
               "other.py"]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env=mpirun_environment(), timeout=HANG, check=False
    )
    assert done.returncode == 2
    assert "error: ranks run different versions of mspc: rank 0 0.1.0, rank 1 9.9\n" in done.stderr
    assert "[1. 0.]" not in done.stdout


def test_tests_that_ask_for_ranks_compile_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_it.py").write_text(TEST)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
