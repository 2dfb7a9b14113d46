"""On CPUs operators along rows are fused where a step has many elements, those of loops' turns counted; else not."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Value
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.control.regions import Scan
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.math.arithmetic import Mul
from mspc.ops.nn.softmax import Softmax
from mspc.passes.base import find_pass
from tests.runtime.region_graphs import graph, run_graphs


def rows(b: Builder, x: Value) -> list[Value]:
    """Three nodes as large as x."""
    return [b.emit(Mul(), b.emit(Softmax(-1), b.emit(Mul(), x, x)), x)]


def network(size: int, turns: int) -> Graph:
    """A loop of so many turns, of three nodes of `size` elements each."""
    type = TensorType(FLOAT32, (size // 256, 256))
    body = graph("scan_1_body", [type], rows)
    return graph("net", [type], lambda b, x: run_graphs(b, Scan(turns=turns, carried=1), [x], body))


@pytest.mark.parametrize(("size", "turns", "fused"), [(1 << 20, 2, False), (1 << 20, 6, True), (1 << 23, 1, True)])
def test_a_step_of_many_elements_is_fused(size: int, turns: int, fused: bool) -> None:
    found = network(size, turns)
    assert find_pass("fuse_large_rows").run(found) is fused
    nodes = [node for each in found.graphs() for node in each.nodes]
    assert any(isinstance(node.op, FusedElementwise) for node in nodes) is fused
