"""Ranks that must feed the same batch, or the same slice of it, and do not, are refused in the first steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.run import run_script
from tests.errors import error_of
from tests.texts import IMPORTS

SCRIPT = IMPORTS + """
from mindspore.communication import get_rank, init

init()
ms.set_auto_parallel_context({settings})


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.v = (Parameter(Tensor(np.ones((4, 4)), ms.float32), name=name) for name in "wv")
        self.first, self.second = ops.MatMul().shard(((2, 1), (1, 1))), ops.MatMul()
        {stages}

    def construct(self, x):
        return ops.reduce_mean(self.second(self.first(x, self.w), self.v))


net = Net()
step = nn.TrainOneStepCell({cell}, nn.SGD(net.trainable_params(), 0.1))
x = np.arange(32, dtype=np.float32).reshape(8, 4)
for i in range(4):
    own = x + (i == {wrong}) * ({first} <= get_rank()) * 0.5
    step(Tensor(own{mine}))
print("trained")
"""
FULL = 'parallel_mode="semi_auto_parallel", full_batch=True'


def text(
    settings: str = FULL, wrong: int = 0, first: int = 1, mine: str = "", stages: str = "", cell: str = "net"
) -> str:  # fmt: skip
    return SCRIPT.format(settings=settings, wrong=wrong, first=first, mine=mine, stages=stages, cell=cell)


CASES = {
    "the global batch": (2, text(), "ranks 0 and 1", "step 1, for the global batch: in row 0 it has 0.0 on rank 0"),
    "a later step": (2, text(wrong=2), "ranks 0 and 1", "step 3"),
    "equal": (2, text(wrong=9), "", ""),
    "in stages": (
        4, text(f"{FULL}, pipeline_stages=2", stages="self.first.set_stage(0); self.second.set_stage(1)",
                cell="nn.PipelineCell(net, 2)", first=2), "", "",
    ),  # stage 1 reads no input
    "ranks of one stage": (
        4, text(f"{FULL}, pipeline_stages=2", stages="self.first.set_stage(0); self.second.set_stage(1)",
                cell="nn.PipelineCell(net, 2)"), "ranks 0 and 1", "for the global batch",
    ),
    "slices": (
        4, text('parallel_mode="semi_auto_parallel", dataset_strategy=((2, 1),)', first=3,
                mine="[get_rank() // 2 * 4:][:4]"), "ranks 2 and 3", "for its slice [4:8, 0:4]",
    ),
    "rows of each rank's own": (
        2, text('parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel"', mine="[get_rank() * 4:][:4]"),
        "", "",
    ),
    "data parallel mode": (2, text('parallel_mode="data_parallel"'), "", ""),
    "each rank its own job": (2, text('parallel_mode="stand_alone"'), "", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_feed_different_batches(case: str, own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, script, who, where = CASES[case]
    (own_folder / "net.py").write_text(script)
    if not who:
        run_script(own_folder / "net.py", ranks, simulate=True)
        assert capsys.readouterr().out.splitlines().count("trained") == ranks
        return
    error = error_of(run_script, own_folder / "net.py", ranks, simulate=True)
    assert error.message.startswith(f"{who} feed different values of input 'inputs0' in ")
    assert where in error.message


# `parameter_broadcast`: ranks whose scripts make other values start with those of rank 0.


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


def broadcast_text(mode: str, broadcast: bool, strategy: str = "") -> str:
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
    (first, _), (other, after) = simulated(tmp_path, broadcast_text(mode, True), capsys)
    assert other["own"] != first["own"]
    for name in ("own", "dense.weight", "dense.bias"):
        assert after[name] == first[name]
    assert after["apart"] == other["apart"] == [1.0] * 4


def test_without_it_each_keeps_its_own(tmp_path: Path, capsys: Any) -> None:
    (first, _), (other, after) = simulated(tmp_path, broadcast_text("data_parallel", False), capsys)
    assert other["own"] != first["own"]
    assert after["own"] == other["own"]


def test_a_sharded_parameter_is_each_ranks_own(tmp_path: Path, capsys: Any) -> None:
    strategy = "self.product.shard(((1, 1), (1, 2)))"
    (first, _), (other, after) = simulated(tmp_path, broadcast_text("semi_auto_parallel", True, strategy), capsys)
    assert [row[:2] for row in after["own"]] == [row[:2] for row in first["own"]]
    assert [row[2:] for row in after["own"]] == [row[2:] for row in other["own"]]
    assert after["dense.bias"] == first["dense.bias"]
