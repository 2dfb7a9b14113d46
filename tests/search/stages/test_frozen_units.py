"""Units of which others' parameters are trained are of another kind."""

from __future__ import annotations

from pathlib import Path

from mspc.analysis.cost.known_machines import H200
from mspc.commands.compile import CompileOptions, find_call
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.stages.costing import unit_costs
from mspc.search.stages.network import StagedNetwork
from tests.search.stages.held_less_network import script


def test_frozen_layers_have_costs_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    freeze = "net = Net()\nfor p in net.layers[1].get_parameters():\n    p.requires_grad = False\n"
    file.write_text(script().replace("cell = nn.PipelineCell(Net(), 4)", f"{freeze}cell = nn.PipelineCell(net, 4)"))
    captured = find_call(str(file), CompileOptions(4)).captured
    network = StagedNetwork(captured, PlanRequest(4, H200).config(captured))
    kinds = [unit.kind for unit in network.units]
    assert [kinds.index(kind) for kind in kinds[:5]] == [0, 1, 0, 0, 0]
    costs = unit_costs(network, 2, 4, H200, memory=True).costs
    assert costs.totals[1] == 0
    assert all(costs.totals[[0, 2, 3, 4, 5]] > 0)
    assert costs.backward[1] < costs.backward[2]
