"""A search that a file asks for: with the network named, and with cells computed again that hold several results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.passes.base import VERIFY

pytestmark = pytest.mark.usefixtures("brief_searches")

NAMED = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
SETTINGS
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = Parameter(Tensor(np.ones((64, 256)), ms.float32))
        self.down = Parameter(Tensor(np.ones((256, 64)), ms.float32))
        self.matmul = ops.MatMul()
    def construct(self, x):
        return ops.reduce_mean(self.matmul(ops.relu(self.matmul(x, self.up)), self.down))
"""
AGAIN = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
ms.set_auto_parallel_context(
    parallel_mode="auto_parallel", search_mode="dynamic_programming", dataset_strategy="full_batch", device_num=8
)
class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((64, 64)), ms.float32))
        self.matmul, self.drop = ops.MatMul(), nn.Dropout(p=0.1)
    def construct(self, x):
        y = ops.relu(self.matmul(x, self.w))
        y = SEVERAL
        return ops.tanh(self.matmul(y, self.w))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.inner.recompute()
    def construct(self, x):
        return ops.reduce_mean(self.inner(x))
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params())).set_train()(Tensor(np.ones((16, 64)), ms.float32))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VERIFY, raising=False)

    def compiled(script: str, *arguments: str) -> Any:
        Path("net.py").write_text(script)
        return CliRunner().invoke(app, ["compile", *arguments, "--ranks", "8"])

    return compiled


@pytest.mark.parametrize(
    ("settings", "mode", "origin"),
    [
        ('parallel_mode="auto_parallel", search_mode="dynamic_programming"', "auto_parallel", "search"),
        ('parallel_mode="auto_parallel", search_mode="sharding_propagation"', "auto_parallel", "the data"),
        ("", "semi_auto_parallel", "batch"),
    ],
)
def test_a_files_own_settings_count_where_its_network_is_named(run: Any, settings: str, mode: str, origin: str) -> None:
    line = f"ms.set_auto_parallel_context({settings})" if settings else ""
    done = run(NAMED.replace("SETTINGS", line), "net.py:Net()", "--input", "float32[16,64]")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{mode}, 8 ranks, ")
    assert origin in done.stdout.partition("MatMul")[2].splitlines()[0]


def test_a_search_that_no_mode_asks_for_is_said_to_change_nothing(run: Any) -> None:
    line = 'ms.set_auto_parallel_context(search_mode="dynamic_programming")'
    done = run(NAMED.replace("SETTINGS", line), "net.py:Net()", "--input", "float32[16,64]")
    assert done.exit_code == 0, done.output
    said = "search_mode='dynamic_programming') changes nothing here: it counts in auto_parallel mode"
    assert said in " ".join(done.stderr.split())


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "several",
    [
        "y * ops.reduce_sum(ops.TopK()(y, 8)[0], 1).reshape((-1, 1))",
        "y * ops.max(y, 1, keepdims=True)[0]",
        "self.drop(y)",
        "ops.ArgMaxWithValue(1, True)(y)[1] + y",
    ],
)
def test_operators_of_several_results_are_computed_again_under_a_search(run: Any, several: str) -> None:
    done = run(AGAIN.replace("SEVERAL", several), "net.py")
    assert done.exit_code == 0, done.output
