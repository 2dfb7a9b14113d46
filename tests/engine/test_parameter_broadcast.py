"""`parameter_broadcast`: ranks whose scripts make other values start with those of rank 0."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.run import run_script
from tests.conftest import HANG
from tests.serving import SERVED

TEXT = """
import json
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops, Parameter, Tensor
from mindspore.communication import init, get_rank
from mindspore.train import Model

init()
rank = get_rank()
ms.set_auto_parallel_context(parallel_mode="MODE", parameter_broadcast=BROADCAST)
ms.set_seed(rank)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.own = Parameter(np.random.rand(4, 4).astype(np.float32), "own")
        self.apart = Parameter(np.full((4,), rank, np.float32), "apart", layerwise_parallel=True)
        self.product = ops.MatMul()
        STRATEGY

    def construct(self, x):
        return self.product(self.dense(x), self.own) + self.apart


net = Net()
before = {p.name: p.asnumpy().tolist() for p in net.get_parameters()}
rows = np.ones((4, 4), np.float32)
data = ds.GeneratorDataset([(rows, rows)] * 2, ["x", "y"])
Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.0)).train(1, data)
print(json.dumps([before, {p.name: p.asnumpy().tolist() for p in net.get_parameters()}]))
"""


def text(mode: str, broadcast: bool, strategy: str = "") -> str:
    return TEXT.replace("MODE", mode).replace("BROADCAST", str(broadcast)).replace("STRATEGY", strategy)


def simulated(path: Path, what: str, capsys: Any) -> list[Any]:
    script = path / "broadcast.py"
    script.write_text(what)
    run_script(script, 2, simulate=True)
    said = capsys.readouterr()
    assert "parameter_broadcast" not in said.err
    return [json.loads(line) for line in said.out.splitlines()]


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel"])
def test_all_start_with_the_values_of_rank_0(mode: str, tmp_path: Path, capsys: Any) -> None:
    (first, _), (other, after) = simulated(tmp_path, text(mode, True), capsys)
    assert other["own"] != first["own"]
    for name in ("own", "dense.weight", "dense.bias"):
        assert after[name] == first[name]
    assert after["apart"] == other["apart"] == [1.0] * 4


def test_without_it_each_keeps_its_own(tmp_path: Path, capsys: Any) -> None:
    (first, _), (other, after) = simulated(tmp_path, text("data_parallel", False), capsys)
    assert other["own"] != first["own"]
    assert after["own"] == other["own"]


def test_a_sharded_parameter_is_each_ranks_own(tmp_path: Path, capsys: Any) -> None:
    strategy = "self.product.shard(((1, 1), (1, 2)))"
    (first, _), (other, after) = simulated(tmp_path, text("semi_auto_parallel", True, strategy), capsys)
    assert [row[:2] for row in after["own"]] == [row[:2] for row in first["own"]]
    assert [row[2:] for row in after["own"]] == [row[2:] for row in other["own"]]
    assert after["dense.bias"] == first["dense.bias"]


def test_under_mpirun(tmp_path: Path) -> None:
    script = tmp_path / "broadcast.py"
    script.write_text(text("data_parallel", True))
    command = [*SERVED, "run", str(script), "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr
    found = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda ends: ends[0]["apart"])
    (first, after), (second, other) = found
    assert first["own"] != second["own"]
    assert after["own"] == other["own"] == first["own"]
