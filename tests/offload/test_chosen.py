"""Within a limit of memory searches choose what lives on the host, where that is the quickest."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.passes.base import VERIFY
from mspc.plans.files.plan_file import read_plan, write_plan
from tests.serving import invoke
from tests.texts import IMPORTS

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = """
import sys
import mindspore as ms
from mindspore import Tensor, nn, ops
ms.set_context(device_target=sys.argv[1])
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm((4096,)), nn.Dense(4096, 8192), nn.Dense(8192, 4096)
    def construct(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(3)])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(shape=(int(sys.argv[2]), 4096), dtype=ms.float32))
"""
ROWS = 32768
SLOW = """
name = "slow"
device = "GPU"
memory = 3.2e12
kernel = 1.5e-6
other_products = 50e12
[products]
Float32 = 300e12
[traffic]
host_copies = 1e8
[link]
latency = 12e-6
bandwidth = 340e9
"""


def searched(rows: int, limit: str, *options: str, device: str = "GPU") -> dict[str, Any]:
    """The plan that a search finds, with its notes."""
    arguments = ["net.py", "--ranks", "1", "--quiet", "--json", "plans.json", "--out", "plan.toml", "--summary"]
    done = invoke("search", *arguments, *["--memory", limit] * bool(limit), *options, "--", device, str(rows), status=0)
    (plan,) = [each for each in json.loads(Path("plans.json").read_text())["plans"] if each["name"] == "search"]
    return plan | {"text": done.stdout}


@pytest.fixture(autouse=True)
def folder(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT)
    return own_folder


def compiled_memory(*arguments: str, ranks: int = 1) -> dict[str, int]:
    """The memory that a compile of the plan states."""
    command = ["compile", "net.py", "--ranks", ranks, "--strategies", "plan.toml", "--json", "c.json", "-q"]
    invoke(*command, "--", *arguments, status=0)
    return json.loads(Path("c.json").read_text())["memory"]


def test_activations_wait_on_the_host_where_that_is_hidden() -> None:
    free, found = searched(ROWS, ""), searched(ROWS, "11GB")
    assert (free["offload"], free["offload_states"], free["on_host"]) == ([], False, 0)
    assert 1 <= len(found["offload"]) < 3
    assert (found["offload_states"], found["recompute"]) == (False, [])
    assert free["step"] <= found["step"] <= 1.001 * free["step"]
    words = f"offload of activations of {len(found['offload'])} cells;"
    assert words in found["text"]
    said = f"keeps what gradients read of {len(found['offload'])} cells on the host: {found['offload'][0]}"
    assert said in found["text"]


@pytest.mark.thorough
def test_what_is_chosen_is_what_its_plan_compiles_to_and_is_compared_and_told() -> None:
    found = searched(ROWS, "9.4GB")
    plan = read_plan(Path("plan.toml"))
    assert plan.offload_states is found["offload_states"] is True
    assert list(plan.offload) == found["offload"] != []
    assert "offload of optimizer states and activations of" in found["text"]
    memory = compiled_memory("GPU", str(ROWS))
    workspaces = 33_554_432
    own = sum(memory[part] for part in ("weights", "states", "inputs", "constants", "step"))
    assert own + workspaces == found["memory"] <= 9.4e9
    assert memory["states_on_host"] + memory["values_on_host"] == found["on_host"]
    compare = ["--ranks", "1", "--compare", "plan.toml", "plan.toml", "--json", "-"]
    done = invoke("search", "net.py", *compare, "--", "GPU", str(ROWS))
    assert json.loads(done.stdout)["plans"][0]["step"] == found["step"]
    write_plan(Path("without.toml"), replace(plan, offload=(), offload_states=False))
    moved = json.loads(invoke("diff", "without.toml", "plan.toml", "--json", "-").stdout)["memory"]
    wanted = {*plan.offload, "optimizer states"}
    assert {(each["name"], each["first"], each["second"]) for each in moved} == {(name, None, "yes") for name in wanted}
    compiled = ["--strategies", "plan.toml", "--out", "made", "-q", "--", "GPU", str(ROWS)]
    assert invoke("compile", "net.py", "--ranks", "1", *compiled).exit_code == 0
    assert invoke("diff", "plan.toml", "made").exit_code == 0


@pytest.mark.thorough
def test_nothing_is_copied_where_that_is_slower_or_the_device_is_its_own_host() -> None:
    Path("slow.toml").write_text(SLOW)
    found = searched(ROWS, "11GB", "--machine", "slow.toml")
    assert found["recompute"] != []
    assert (found["offload"], found["offload_states"]) == ([], False)
    assert searched(ROWS, "12GB")["on_host"] == 0, "all fits"
    on_cpu = searched(ROWS, "11GB", device="CPU")
    assert (on_cpu["on_host"], on_cpu["offload"]) == (0, [])


SEARCHED_SCRIPT = IMPORTS + """
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
    Path("net.py").write_text(SEARCHED_SCRIPT)
    common = ["net.py", "--ranks", "4", "--quiet", "--json"]
    for arguments in (["search", *common, "plans.json", "--out", "plan.toml"],
                      ["compile", *common, "table.json", "--strategies", "plan.toml"]):  # fmt: skip
        invoke(*arguments, status=0)
    (found,) = [plan for plan in json.loads(Path("plans.json").read_text())["plans"] if plan["name"] == "search"]
    memory = json.loads(Path("table.json").read_text())["memory"]
    assert "a search" in found["taken_from"]
    assert found["on_host"] == memory["states_on_host"] > 0


STAGED = IMPORTS + """
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
    rows = json.loads(invoke(*common, "--json", "-").stdout)["plans"]
    both = 2 * 2 * 4 * 64 * 64  # moments of two weights
    assert {row["on_host"] for row in rows if row["stages"] == 2 and row["compiled"]} == {both // 2}
    assert {row["on_host"] for row in rows if row["stages"] == 1} <= {both, both // 2}
    done = invoke(*common, "--summary")
    assert "a rank, 32.0 KiB on its host" in done.stdout or "a rank, 64.0 KiB on its host" in done.stdout
