"""Parts of a plan that may be on the host: cells in their order, and no cell that holds others for its own values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mspc.analysis.cost.machine import H200
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import Add, Mul
from mspc.search.plans.limited import HostCopyBudget, HostMemoryUse

NBYTES = 4 * 64 * 1024


def network(layers: int) -> Graph:
    """A network that keeps a value of its own, and one of each of its layers."""
    graph = Graph("step")
    x = Parameter("x", TensorType(FLOAT32, (64, 1024)), "input", False)
    graph.parameters = [x]
    b, kept, value = Builder(graph), list[Node](), x
    for name in ("network-Net", *(f"network-Net/layers-CellList/{i}-Layer" for i in range(layers))):
        value = b.emit(Mul(), value, value)
        value.scope, value.phase = f"Default/{name}", "forward"
        kept.append(value)
    back: Value = value
    for each in reversed(kept):
        back = b.emit(Add(), back, each)
        assert isinstance(back, Node)
        back.scope, back.phase = each.scope, "backward"
    graph.results = [back]
    return graph


def test_cells_that_run_first_leave_first() -> None:
    room = HostCopyBudget.of(network(16), H200)
    layers = [f"Default/network-Net/layers-CellList/{i}-Layer" for i in range(16)]
    assert [cell for cell, _ in room.cells] == layers, "the network itself holds them all"
    assert {nbytes for _, nbytes in room.cells} == {NBYTES}
    room = replace(room, forward=1.0)
    assert room.hidden == 16 * NBYTES
    assert room.first_cells(0) == room.first_cells(-5.0) == ()
    assert room.first_cells(NBYTES) == tuple(layers[:1])
    assert room.first_cells(2.5 * NBYTES) == tuple(layers[:3])
    assert room.first_cells(100 * NBYTES) == tuple(layers)
    slow = replace(room, forward=H200.moving_seconds(4 * NBYTES, "host_copies"))
    assert slow.hidden == pytest.approx(4 * NBYTES)
    assert len(slow.first_cells(100 * NBYTES)) in (4, 5)


def test_states_are_late_by_what_the_gradients_do_not_hide() -> None:
    room = replace(HostCopyBudget.of(network(2), H200), states=55e9, backward=0.4)
    assert room.late(True) == pytest.approx(0.6)
    assert room.late(False) == 0.0
    assert replace(room, backward=2.0).late(True) == 0.0


def test_what_is_on_the_host_is_told() -> None:
    assert HostMemoryUse(("a",)).words == "values of 1 cell on the host"
    assert HostMemoryUse(("a", "b"), True).words == "optimizer states and values of 2 cells on the host"
