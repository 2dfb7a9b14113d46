"""Units of which other parameters are trained, or of which the script asks otherwise, are of another kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.compile import CompileOptions, find_call
from mspc.ir.diagnostics import MspcError
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.stages.costing import UnitMeasurement
from mspc.search.stages.network import StagedNetwork
from tests.search.stages.held_less_network import script

MAKES = "cell = nn.PipelineCell(Net(), 4)"


def searched(tmp_path: Path, marks: str, free: bool = False) -> StagedNetwork:
    """The network with more lines of the script behind the one that makes it."""
    file = tmp_path / "net.py"
    file.write_text(script().replace(MAKES, f"net = Net()\n{marks}cell = nn.PipelineCell(net, 4)"))
    captured = find_call(str(file), CompileOptions(4)).captured
    return StagedNetwork(captured, PlanRequest(4, H200).config(captured), free)


def kinds_of(network: StagedNetwork) -> list[int]:
    """The first of the first units that each is like."""
    kinds = [unit.kind for unit in network.units]
    return [kinds.index(kind) for kind in kinds[:5]]


def test_frozen_layers_have_costs_of_their_own(tmp_path: Path) -> None:
    freeze = "for p in net.layers[1].get_parameters():\n    p.requires_grad = False\n"
    network = searched(tmp_path, freeze)
    assert kinds_of(network) == [0, 1, 0, 0, 0]
    costs = UnitMeasurement(network, 2, 4, H200, memory=True).costs().costs
    assert costs.totals[1] == 0
    assert all(costs.totals[[0, 2, 3, 4, 5]] > 0)
    assert costs.backward[1] < costs.backward[2]


@pytest.mark.parametrize("asked", ["recompute()", "offload()", "offload(3)"])
def test_marked_layers_have_costs_of_their_own(asked: str, tmp_path: Path) -> None:
    assert kinds_of(searched(tmp_path, f"net.layers[1].{asked}\n")) == [0, 1, 0, 0, 0]
    assert kinds_of(searched(tmp_path, f"for layer in net.layers:\n    layer.{asked}\n")) == [0, 0, 0, 0, 0]


def test_layers_keep_the_strategies_that_the_script_gives_each(tmp_path: Path) -> None:
    network = searched(tmp_path, "net.layers[1].first.shard(((1, 2), (2, 1)))\n")
    assert kinds_of(network) == [0, 1, 0, 0, 0]
    given = UnitMeasurement(network, 2, 4, H200).costs().layouts.strategies or {}
    of_first = [entry.operands for name, entry in given.items() if name.endswith("-Layer/MatMul-op0")]
    assert of_first == [((2, 1), (1, 1)), ((1, 2), (2, 1)), *[((2, 1), (1, 1))] * 4]
    free = searched(tmp_path, "net.layers[1].first.shard(((1, 2), (2, 1)))\n", free=True)
    assert kinds_of(free) == [0, 0, 0, 0, 0]


def test_branches_in_stages_are_refused_at_their_line(tmp_path: Path) -> None:
    branch = "        if inside.mean() > 0:\n            inside = ops.matmul(inside, self.up.T @ self.up)\n"
    text = script().replace("        return self.add(x,", f"{branch}        return self.add(x,")
    (tmp_path / "net.py").write_text(text)
    captured = find_call(str(tmp_path / "net.py"), CompileOptions(4)).captured
    network = StagedNetwork(captured, PlanRequest(4, H200).config(captured))
    with pytest.raises(MspcError, match="the search does not weigh values that only a run knows") as caught:
        network.loop  # noqa: B018  # which reads the network
    assert caught.value.location is not None
    assert text.splitlines()[caught.value.location.line - 1].strip() == "if inside.mean() > 0:"
