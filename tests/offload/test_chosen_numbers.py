"""A plan that a search has chosen with something on the host has the numbers of one device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.passes.base import VERIFY
from mspc.plans.files.plan_file import read_plan, write_plan
from tests.pipelining.random_networks import run

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
ms.set_context(device_target="{device}")
{mode}
ms.set_seed(5)
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((511,), dtype=ms.float64)
        self.up, self.down = nn.Dense(511, 2047, dtype=ms.float64), nn.Dense(2047, 511, dtype=ms.float64)
    def construct(self, x):
        return x + self.down(ops.tanh(self.up(self.norm(x))))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(3)])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()
net = Net()
step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
rows = np.random.default_rng(2).standard_normal((32, 511))
found = {{f"loss {{i}}": step(Tensor(rows)).asnumpy() for i in range(2)}}
found |= {{p.name: p.asnumpy() for p in step.get_parameters()}}
from mindspore.communication import get_rank
rank = get_rank() if {mode!r} else 0
np.savez(f"rank_{{rank}}.npz", **found)
"""
MODE = """
from mindspore.communication import init
init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True,
                             strategy_ckpt_config={"load_file": "plan.toml"})
"""


WORKSPACES = 33_554_432
"""Bytes of the kernels of products, whatever the plan."""


def searched(*options: str) -> dict[str, Any]:
    arguments = ["search", "net.py", "--ranks", "2", "-q", "--json", "plans.json", "--out", "plan.toml", *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (plan,) = [each for each in json.loads(Path("plans.json").read_text())["plans"] if each["name"] == "search"]
    return plan


def test_chosen_plans_train_as_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT.format(device="GPU", mode=""))
    plan = searched("--memory", str(int(WORKSPACES + 0.8 * (searched()["memory"] - WORKSPACES))))
    assert plan["offload_states"], "slices of odd sizes are none"
    (alone,) = run(SCRIPT.format(device="CPU", mode=""), 1, tmp_path)
    for both in (False, True):
        if both:
            layers = tuple(f"Default/network-Net/layers-CellList/{i}-Layer" for i in range(2))
            write_plan(Path("plan.toml"), replace(read_plan(Path("plan.toml")), offload=layers, offload_states=True))
        for found in run(SCRIPT.format(device="CPU", mode=MODE), 2, tmp_path):
            for name, wanted in alone.items():
                np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-10, err_msg=name)
