"""Notes of `mspc search` beside the figures: whose strategies rows keep, and that they change nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import shown_bytes
from mspc.passes.base import VERIFY
from tests.serving import invoke
from tests.texts import IMPORTS

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = IMPORTS + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((64, WIDTH)), ms.float32))
        self.matmul = ops.MatMul()STRATEGY
    def construct(self, x):
        return ops.reduce_mean(self.matmul(x, self.weight))
net = Net()
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(Tensor(np.ones((16, 64)), ms.float32))
"""
SHARD = ".shard(((2, 1), (1, 2)))"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VERIFY, raising=False)


def searched(width: int, strategy: str, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    """The output of a search, and its plans."""
    Path("net.py").write_text(SCRIPT.replace("WIDTH", str(width)).replace("STRATEGY", strategy))
    done = invoke("search", "net.py", "--ranks", "4", "--top", "9", "--json", "a.json", *arguments, status=0)
    return done.stdout, json.loads(Path("a.json").read_text())["plans"]


def test_rows_that_keep_the_scripts_strategies_are_marked() -> None:
    printed, plans = searched(64, SHARD)
    configured = {plan["name"] for plan in plans if plan["keeps_strategies"]}
    assert configured == {"search", "sharding propagation"}
    for name in {plan["name"] for plan in plans}:
        assert (f" {name} * " in printed) == (name in configured)
    assert printed.count("note: * keeps the script's own strategies, the others go without them") == 1


@pytest.mark.parametrize(("strategy", "arguments"), [(SHARD, ("--free",)), ("", ())])
def test_no_row_is_marked_without_strategies(strategy: str, arguments: tuple[str, ...]) -> None:
    printed, plans = searched(64, strategy, *arguments)
    assert not any(plan["keeps_strategies"] for plan in plans)
    assert "*" not in printed


def test_optimizer_parallel_below_its_threshold_says_that_it_changes_nothing() -> None:
    said = "optimizer parallel on 4 ranks changes nothing against data parallel: all parameters that are trained are " \
        "below the threshold of 64 KiB"  # fmt: skip
    printed, plans = searched(255, "")
    assert said in printed
    assert next(plan for plan in plans if plan["name"] == "optimizer parallel")["same_as"] == "data parallel"
    printed, plans = searched(256, "")
    assert "optimizer parallel on 4 ranks changes nothing" not in printed
    assert next(plan for plan in plans if plan["name"] == "optimizer parallel")["same_as"] == ""


DEEP = IMPORTS + """
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = Parameter(Tensor(np.ones((32, 128)), ms.float32), name="up")
        self.down = Parameter(Tensor(np.ones((128, 32)), ms.float32), name="down")
        self.first, self.second, self.gelu = ops.MatMul(), ops.MatMul(), ops.GeLU()
    def construct(self, x):
        return x + self.second(self.gelu(self.first(x, self.up)), self.down)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(3)])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.reduce_mean(x)
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.1))(Tensor(np.ones((256, 32)), ms.float32))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("memory", "done"),
    [
        (550_000, "computing cells again"),
        (420_000, "smaller slices of parameters and states and computing cells again"),
        (300_000, ""),
    ],
)
def test_usual_plans_that_do_not_fit_are_made_to(memory: int, done: str) -> None:
    Path("net.py").write_text(DEEP)
    arguments = ["--ranks", "4", "--top", "9", "--json", "a.json", "--memory", str(memory), "--out", "plans"]
    found = invoke("search", "net.py", *arguments, status=0)
    plans = {plan["name"]: plan for plan in json.loads(Path("a.json").read_text())["plans"]}
    if not done:
        assert "data parallel" not in plans
        assert f"data parallel: it needs 560.0 KiB (573,484 bytes) of memory on a rank, and the limit " \
            f"is {shown_bytes(memory)}; smaller slices of parameters and states and computing cells again were " \
            "tried, and 316.0 KiB (323,628 bytes) is the least; smaller slices of parameters and states, computing " \
            "cells again cannot be enough" in found.stdout  # fmt: skip
        return
    plan = plans["data parallel"]
    assert (plan["made_to_fit"], plan["otherwise"]) == (done, 573484)
    assert plan["memory"] <= memory
    assert f"note: data parallel on 4 ranks fits by {done}; without that it takes 560.0 KiB" in found.stdout
    for name, plan in plans.items():
        if not plan["made_to_fit"]:
            continue
        compare = ["search", "net.py", "--ranks", "4", "--json", "b.json", "--compare"]
        invoke(*compare, f"plans/{plan['file']}", f"plans/{plan['file']}", status=0)
        for both in json.loads(Path("b.json").read_text())["plans"]:
            columns = ("step", "compute", "exposed", "nbytes", "collectives", "memory")
            assert [both[column] for column in columns] == [plan[column] for column in columns], name
