"""Searches in stages choose what lives on the host within a limit of memory; what they tell is what their plan compiles
to."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.compile import CompileOptions, find_call
from mspc.compiler.driver import Compiled, compile_call
from mspc.engine.strategy_files import sharded_by_file
from mspc.ir.text.families import each_of_cells
from mspc.ops.tensor.host_memory import AssignOnHost, ToHost
from mspc.output.programs import config_of
from mspc.passes.base import VERIFY
from mspc.passes.lib.schedules import ONE_FORWARD_ONE_BACKWARD
from mspc.plans.files.plan_file import read_plan
from mspc.runtime.memory_plan import plan_memory
from mspc.search.stages.costing import step_seconds
from mspc.search.stages.launch import cells_on_host
from mspc.search.stages.network import Unit
from mspc.search.stages.problem import HostBytes, Way, walk_of
from mspc.verify.scale.memory_use import MemoryCheck
from tests.search.stages.test_stage_choices import equal
from tests.serving import invoke

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = """
import sys
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import init
ms.set_context(device_target=sys.argv[1])
ROWS, LAYERS, PARTS = (int(number) for number in sys.argv[2:])
init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm((4096,)), nn.Dense(4096, 16384), nn.Dense(16384, 4096)
    def construct(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()
net = nn.PipelineCell(Net(), PARTS)
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(shape=(ROWS, 4096), dtype=ms.float32))
"""
WORKSPACES = 32 << 20


@pytest.fixture(autouse=True)
def folder(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT)
    return own_folder


def searched(stages: int, limit: str, *network: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of a search, and what it prints."""
    options = ["--ranks", str(stages), "--stages", str(stages), "--memory", limit, "--summary", "--quiet"]
    files = ["--json", "rows.json", "--out", "plan.toml"]
    done = invoke("search", "net.py", *options, *files, "--", *network, status=0)
    return json.loads(Path("rows.json").read_text())["plans"], done.stdout


def compiled(stages: int, *network: str) -> Compiled:
    """The program of the plan that was written."""
    options = CompileOptions(stages, script_arguments=network)
    launch = find_call("net.py", options).captured
    captured = replace(launch, context=sharded_by_file(launch.context, Path("plan.toml")))
    return compile_call(captured.target, captured.args, config_of(captured, stages))


def check_compiles_to(row: dict[str, Any], stages: int, *network: str) -> list[set[type]]:
    """That a row tells of its plan's program; the operators of every stage."""
    made = compiled(stages, *network)
    assert step_seconds(made, H200) == pytest.approx(row["step"])
    graphs = [made.rank_graph(stage) for stage in range(stages)]
    plans = [plan_memory(graph) for graph in graphs]
    assert max(plan.peak for plan in plans) + WORKSPACES == row["memory"]
    assert max(plan.on_host for plan in plans) == row["on_host"]
    for graph in graphs:
        assert not [*MemoryCheck(graph, plan_memory(graph, early=True), early=True).misuses()]
    return [{type(node.op) for node in graph.nodes} for graph in graphs]


@pytest.mark.thorough
def test_values_of_micro_batches_live_on_the_host_beside_the_work() -> None:
    network = ("GPU", "65536", "8", "8")
    rows, told = searched(4, "25GB", *network)
    own, others = rows[0], [row for row in rows if row["name"] == "all on the device"]
    assert own["name"] == "search"
    assert others[0]["step"] > 1.1 * own["step"], "cells again take longer"
    assert (own["recompute"], own["offload_states"]) == ([], False)
    assert own["offload"] == list(read_plan(Path("plan.toml")).offload) != []
    assert own["memory"] <= 25e9
    assert own["step"] == pytest.approx(own["foreseen"], rel=0.01), "copies hide"
    count = sum(1 for name in own["offload"] for _ in each_of_cells(name))
    assert f"keeps what gradients read of {count} cells on the host" in told
    assert f"offload of activations of {count} cells" in told
    assert any(ToHost in ops for ops in check_compiles_to(own, 4, *network))


@pytest.mark.thorough
def test_states_live_on_the_host_where_nothing_fits_else() -> None:
    network = ("GPU", "1024", "5", "4")
    rows, told = searched(2, "6GB", *network)
    own = rows[0]
    assert own["offload_states"] is read_plan(Path("plan.toml")).offload_states is True
    assert all(row["offload_states"] for row in rows), "without it nothing fits"
    assert "keeps optimizer states on the host" in told
    assert all(AssignOnHost in ops for ops in check_compiles_to(own, 2, *network))


def test_cpus_have_no_other_memory() -> None:
    rows, _ = searched(2, "9GB", "CPU", "16384", "4", "4")
    assert all(row["on_host"] == 0 and not row["offload"] for row in rows)


def test_as_few_cells_of_each_stage_as_fit() -> None:
    costs = replace(equal(16), host=HostBytes(np.full(16, 1.0), 1e-9))
    units = [Unit((f"cell{number}",), "") for number in range(16)]
    way, boundaries = Way(8, ONE_FORWARD_ONE_BACKWARD, 16, values=True), tuple(range(2, 16, 2))
    row = np.array([boundaries])
    memory = walk_of(way.order).memory_of_stages
    none, every = memory(costs.only(np.zeros(16, bool)), row)[:, 0], memory(costs, row)[:, 0]
    assert every[0] < none[0]
    assert every[-1] == none[-1], "one micro-batch is on its way"
    assert cells_on_host(units, costs, way, boundaries, none[0]) == ()
    assert cells_on_host(units, costs, way, boundaries, every[0])[:2] == ("cell0", "cell1")
    assert "cell15" not in cells_on_host(units, costs, way, boundaries, every[0])
    assert cells_on_host(units, costs, way, boundaries, (every[0] + none[0]) / 2)[:1] == ("cell0",)
