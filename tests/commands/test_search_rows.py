"""What rows of `mspc search` say beside their figures: whose strategies they keep, and that they change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.passes.base import VERIFY

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
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
    """What a search prints, and its plans."""
    Path("net.py").write_text(SCRIPT.replace("WIDTH", str(width)).replace("STRATEGY", strategy))
    done = CliRunner().invoke(app, ["search", "net.py", "--ranks", "4", "--top", "9", "--json", "a.json", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout, json.loads(Path("a.json").read_text())["plans"]


def test_rows_that_keep_the_scripts_strategies_are_marked() -> None:
    printed, plans = searched(64, SHARD)
    kept = {plan["name"] for plan in plans if plan["keeps_strategies"]}
    assert kept == {"search", "sharding propagation"}
    for name in {plan["name"] for plan in plans}:
        assert (f" {name} * " in printed) == (name in kept)
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
