"""`mspc verify`: equal programs pass, a program that differs is named with its first operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import ExecutionError
from mspc.ops.collective.collectives import AllReduce

SCRIPT = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Parameter, Tensor
from mindspore.common.initializer import initializer
ms.set_auto_parallel_context(parallel_mode="{mode}", device_num=4{more})
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [8, 4]), "w")
        self.matmul = ops.MatMul(){shard}
    def construct(self, x):
        return self.matmul(x, self.w)
class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.MSELoss()
    def construct(self, x, y):
        return self.loss(self.net(x), y)
net = Net()
step = nn.TrainOneStepCell(Loss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(np.ones([2, 8]), ms.float32), Tensor(np.ones([2, 4]), ms.float32))
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(mode: str, shard: str = "", more: str = "") -> str:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.format(mode=mode, shard=shard, more=more))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("mode", "shard", "more", "compared"),
    [
        ("semi_auto_parallel", ".shard(((2, 2), (2, 1)))", "", {"output", "gradient", "parameter"}),
        ("auto_parallel", ".shard(((1, 4), (4, 1)))", ", full_batch=True", {"output", "gradient", "parameter"}),
        ("data_parallel", "", ", gradients_mean=True", {"output", "parameter"}),
        ("data_parallel", "", "", {"output"}),
    ],
)
def test_equal_programs_pass(
    script: Callable[..., str], tmp_path: Path, mode: str, shard: str, more: str, compared: set[str]
) -> None:
    file = tmp_path / "rows.json"
    verify_target(script(mode, shard, more), CompileOptions(json=file), seed=3)
    rows = json.loads(file.read_text())
    assert {row["kind"] for row in rows} == compared
    assert all(row["same"] for row in rows)


def test_a_wrong_reduction_is_found_with_its_operator(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(self: AllReduce, be: Any) -> Callable[..., Any]:
        return lambda *arrays: arrays[0] if len(arrays) == 1 else arrays

    monkeypatch.setattr(AllReduce, "kernel", wrong)
    target = script("semi_auto_parallel", ".shard(((1, 4), (4, 1)))", ", full_batch=True")
    with pytest.raises(ExecutionError) as raised:
        verify_target(target, CompileOptions(), seed=0)
    assert raised.value.exit_status == 1
    assert " values differ between one device and 4 ranks" in str(raised.value)
    assert "the first operator where they part is " in str(raised.value)
    assert "differs" in capsys.readouterr().out
