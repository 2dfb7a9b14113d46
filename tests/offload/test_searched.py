"""Values that a search says to be on the host are those of which a compile of its plan says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.passes.base import VERIFY

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = """
import mindspore as ms
from mindspore import Tensor, nn, ops
ms.set_context(device_target="GPU")
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(1024, 2048), nn.Dense(2048, 1024)
        self.norm = nn.LayerNorm((1024,))
    def construct(self, x):
        return ops.square(x + self.down(ops.gelu(self.up(self.norm(x))))).mean()
net = Net()
optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.01)
optimizer.offload()
nn.TrainOneStepCell(net, optimizer)(Tensor(shape=(1024, 1024), dtype=ms.float32))
"""


@pytest.mark.usefixtures("own_folder")
def test_a_plan_that_is_taken_from_another_search_has_its_own_bytes_on_the_host(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT)
    common = ["net.py", "--ranks", "4", "--quiet", "--json"]
    for arguments in (["search", *common, "plans.json", "--out", "plan.toml"],
                      ["compile", *common, "table.json", "--strategies", "plan.toml"]):  # fmt: skip
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    (found,) = [plan for plan in json.loads(Path("plans.json").read_text())["plans"] if plan["name"] == "search"]
    memory = json.loads(Path("table.json").read_text())["memory"]
    assert "a search" in found["taken_from"]
    assert found["on_host"] == memory["states_on_host"] > 0


STAGED = """
import mindspore as ms
from mindspore import Tensor, nn, ops
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(64, 64, has_bias=False, activation="tanh") for _ in range(2)])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()
net = nn.PipelineCell(Net(), 2)
optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.01)
optimizer.offload()
nn.TrainOneStepCell(net, optimizer)(Tensor(shape=(64, 64), dtype=ms.float32))
"""


@pytest.mark.usefixtures("own_folder")
def test_rows_of_stages_have_their_bytes_on_the_host() -> None:
    Path("net.py").write_text(STAGED)
    common = ["search", "net.py", "--ranks", "2", "--stages", "1,2"]
    rows = json.loads(CliRunner().invoke(app, [*common, "--json", "-"]).stdout)["plans"]
    both = 2 * 2 * 4 * 64 * 64  # moments of two weights
    assert {row["on_host"] for row in rows if row["stages"] == 2 and row["compiled"]} == {both // 2}
    assert {row["on_host"] for row in rows if row["stages"] == 1} <= {both, both // 2}
    done = CliRunner().invoke(app, [*common, "--summary"])
    assert "a rank, 32.0 KiB on its host" in done.stdout or "a rank, 64.0 KiB on its host" in done.stdout
