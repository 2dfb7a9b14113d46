"""`mspc verify` finds what it once missed, and does not find what rounding makes: each with one kernel or one part of
the runtime changed in this process, or a network that used to be called different."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import ExecutionError
from tests.compiled_scripts import QUIET, CompileOptions, verify_target
from tests.operators import TanhGrad
from tests.planted_networks import NETWORK
from tests.shares import is_taken
from tests.texts import IMPORTS


@pytest.fixture
def network(tmp_path: Path) -> str:
    (tmp_path / "network.py").write_text(NETWORK)
    return str(tmp_path / "network.py")


def found(target: str, ranks: int = 8) -> ExecutionError:
    with pytest.raises(ExecutionError, match=rf"values differ between one device and {ranks} ranks") as raised:
        verify_target(target, CompileOptions(ranks=ranks, loudness=QUIET), seed=0)
    assert raised.value.exit_status == 1
    return raised.value


def test_nothing_is_found_where_nothing_is_wrong(network: str, tmp_path: Path) -> None:
    verify_target(network, CompileOptions(ranks=8, loudness=QUIET, json=tmp_path / "rows.json"), seed=0)
    rows = json.loads((tmp_path / "rows.json").read_text())["values"]
    assert set(rows[0]) == {"kind", "name", "shape", "difference", "tolerance", "excused", "same"}
    assert {row["kind"] for row in rows} == {"output", "gradient", "parameter"}


def test_a_kernel_that_takes_no_float64_is_not_judged(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TanhGrad.run

    def narrow(self: TanhGrad, be: Any, *inputs: Any) -> Any:
        if inputs[0].dtype == np.float64:
            raise TypeError("Float32 alone")
        return run(self, be, *inputs)

    monkeypatch.setattr(TanhGrad, "run", narrow)
    verify_target(network, CompileOptions(ranks=8, loudness=QUIET), seed=0)


ATTENTION = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
ms.set_seed(1)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Dense(32, 32), nn.Dense(32, 32), nn.Dense(32, 32)
        self.scores = ops.BatchMatMul(transpose_b=True).shard(((2, 2, 1, 1), (2, 2, 1, 1)))
        self.mix = ops.BatchMatMul().shard(((2, 2, 1, 1), (2, 2, 1, 1)))
        self.norm = nn.LayerNorm((32,))
    def heads(self, x):
        return ops.transpose(ops.reshape(x, (8, 16, 4, 8)), (0, 2, 1, 3))
    def construct(self, x):
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        mixed = self.mix(ops.softmax(self.scores(query, key) * 0.35, -1), value)
        return self.norm(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (8, 16, 32)) + x)
net = Net()
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), {optimizer})
step(Tensor(np.ones([8, 16, 32]), ms.float32), Tensor(np.ones([8, 16, 32]), ms.float32))
"""
DENSE = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="{mode}", gradients_mean=True)
ms.set_seed(1)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(16, 32), nn.Dense(32, 8)
        self.drop = nn.Dropout(p=0.3)
        self.bias = Parameter(Tensor(np.ones([4, 8]), ms.float32))
    def construct(self, x):
        return self.second({hidden}) + {more}
net = Net()
net.set_train()
step = nn.TrainOneStepCell(nn.WithLossCell(net, {loss}), nn.Adam(net.trainable_params(), 0.01))
step(Tensor(np.ones([4, 16]), ms.float32), Tensor(np.ones([4, 8]), ms.float32))
"""


@pytest.mark.parametrize("optimizer", ["Momentum(net.trainable_params(), 0.1, 0.9)", "Adam(net.trainable_params())"])
def test_a_gradient_that_is_zero_but_for_rounding_is_no_difference(tmp_path: Path, optimizer: str) -> None:
    (tmp_path / "net.py").write_text(ATTENTION.format(optimizer=f"nn.{optimizer}"))
    file = tmp_path / "rows.json"
    verify_target(str(tmp_path / "net.py"), CompileOptions(ranks=4, loudness=QUIET, json=file), seed=0)
    rows = json.loads(file.read_text())["values"]
    bias = next(r for r in rows if r["kind"] == "gradient" and r["name"].endswith("key.bias"))
    assert bias["difference"] > bias["tolerance"]
    assert bias["excused"]


RIGHT = [
    ("self.drop(ops.tanh(self.first(x)))", "nn.MSELoss()"),
    ("ops.cast(self.first.to_float(ms.float16)(x) * 1e-4, ms.float32)", "nn.MSELoss()"),
    ("ops.relu(self.first(ops.log(x)))", "nn.MSELoss()"),
    ("ops.round(self.first(x) * 3) * self.first(x)", "nn.MSELoss()"),
    ("ops.stop_gradient(self.first(x)) * self.first(x)", "nn.MSELoss()"),
    ("ops.relu(self.first(x))", "nn.SoftmaxCrossEntropyWithLogits(reduction='mean')"),
]
MODES = ("data_parallel", "semi_auto_parallel")
IN_MODES = [(mode, *right) for place, right in enumerate(RIGHT) for turn, mode in enumerate(MODES)
            if is_taken(place + turn, 2)]  # fmt: skip


@pytest.mark.parametrize(("mode", "hidden", "loss"), IN_MODES)
def test_what_is_right_is_not_called_different(tmp_path: Path, mode: str, hidden: str, loss: str) -> None:
    (tmp_path / "net.py").write_text(DENSE.format(mode=mode, hidden=hidden, more="0.0", loss=loss))
    verify_target(str(tmp_path / "net.py"), CompileOptions(ranks=4, loudness=QUIET), seed=0)


def test_a_batch_size_that_the_network_names_is_each_ranks_own(tmp_path: Path) -> None:
    hidden, more = "ops.relu(self.first(ops.reshape(x, (4, 16))))", "self.bias"
    (tmp_path / "net.py").write_text(DENSE.format(mode="data_parallel", hidden=hidden, more=more, loss="nn.MSELoss()"))
    verify_target(str(tmp_path / "net.py"), CompileOptions(ranks=4, loudness=QUIET), seed=0)


def test_a_network_that_takes_positive_numbers_gets_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = "ops.relu(self.first(ops.log(x)))"
    (tmp_path / "net.py").write_text(
        DENSE.format(mode="semi_auto_parallel", hidden=hidden, more="0.0", loss="nn.MSELoss()")
    )
    verify_target(str(tmp_path / "net.py"), CompileOptions(ranks=4), seed=0)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("input ")] == [
        "input inputs0: uniform in [0, 1)", "input inputs1: uniform in [0, 1)"
    ]  # fmt: skip
    assert "gradients on one device beside finite differences along 5 random directions" in lines
