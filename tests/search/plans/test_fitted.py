"""No variant of a usual plan that fits is left out for the memory that it takes at least."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.compile import CompileOptions, find_call
from mspc.ir.diagnostics import MspcError
from mspc.search.plans import table
from mspc.search.plans.alternatives import WAYS, PlannedNetwork, PlanRequest
from mspc.search.plans.table import FittedWay
from tests.search.blocks_network import blocks

RANKS = 4


def outcomes(network: PlannedNetwork, memories: Sequence[int]) -> tuple[list[tuple[float, str] | None], int]:
    """(what every usual way comes to within limits, None where nothing fits; how many variants were tried)"""
    found: list[tuple[float, str] | None] = []
    tried = 0
    for memory in memories:
        for way in WAYS[1:]:
            fitting = FittedWay(network, PlanRequest(RANKS, H200, memory=memory), way)
            try:
                _, plan = fitting.quickest()
                found.append((plan.step, plan.made_to_fit))
            except MspcError:
                found.append(None)
            tried += len(fitting.tried)
    return found, tried


@pytest.mark.share(2)
@pytest.mark.parametrize(("rows", "shares"), [(16, (5, 11)), (512, (2, 8, 14))])
def test_bounds_leave_out_what_does_not_fit_alone(
    rows: int, shares: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.py"
    file.write_text(blocks(rows))
    captured = find_call(str(file), CompileOptions(RANKS)).captured
    asked = PlanRequest(RANKS, H200)
    network = PlannedNetwork.read(captured, asked.config(captured), limited=True)
    _, plan = FittedWay(network, asked, WAYS[2]).quickest()
    memories = [plan.memory * share // 20 for share in shares]
    found, tried = outcomes(network, memories)
    monkeypatch.setattr(table, "_memory_bound", lambda *_: 0)
    wanted, all_tried = outcomes(network, memories)
    assert found == wanted
    assert tried < all_tried


def test_a_large_network_far_from_any_good_plan_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.py"
    file.write_text(blocks(512))
    captured = find_call(str(file), CompileOptions(RANKS)).captured
    asked = PlanRequest(RANKS, H200, memory=1000)
    network = PlannedNetwork.read(captured, asked.config(captured), limited=True)
    monkeypatch.setattr(table, "LARGE_GRAPH", 1)
    monkeypatch.setattr(table, "FAR", 1)
    with pytest.raises(MspcError, match="its step is far from any good one, and nothing was tried"):
        FittedWay(network, asked, WAYS[2]).quickest()
