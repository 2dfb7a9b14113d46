"""Many small blocks become one all-to-all, one gather and a local transposition; the bytes stay the least."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.collective.exchange import Regroup, regrouping
from mspc.ops.op import load_operators
from mspc.passes.lib.redistribution import plan
from tests.interpret import run_on_ranks

load_operators()
PAIRS = [
    (Layout.of((2, 2, 3), [(0, 1, 2), ()]), Layout.of((2, 2, 3), [(0,), (1,)])),
    (Layout.of((2, 3, 2), [(), (0, 1, 2)]), Layout.of((2, 3, 2), [(1,), ()])),
    (Layout.of((2, 2, 2, 2), [(0, 1, 2, 3), (), ()]), Layout.of((2, 2, 2, 2), [(), (), (2, 0)])),
    (Layout.of((2, 2, 2, 2), [(1, 2, 3), (0,)]), Layout.of((2, 2, 2, 2), [(1,), (0, 2)])),
]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_regrouping_brings_every_rank_its_slice(source: Layout, target: Layout) -> None:
    graph = Graph("regroup")
    shape = (48, 24, 12)[: len(source.dims)]
    x = Parameter("x", TensorType(FLOAT64, shape), layout=source)
    node = Node(Regroup(source=source, target=target), [x], x.type)
    node.layout = target
    graph.parameters, graph.nodes, graph.results = [x], [node], [node]
    graph.attrs = {"ranks": source.ranks}
    value = np.random.default_rng(0).random(shape)
    np.testing.assert_array_equal(run_on_ranks(graph, {"x": value})[0], value)


def test_thousands_of_ranks_need_few_messages() -> None:
    source, target = Layout.from_strategy((4096, 1), 4096), Layout.from_strategy((2, 4), 4096)
    found = plan(source, target, (8192, 32), 4)
    assert [step.op.name for step in found.steps] == ["Regroup"]
    assert found.messages == 3 + 511
    needed, held = 4096 * 8, 2 * 8
    assert found.nbytes == (needed - held) * 4


def test_what_is_no_regrouping() -> None:
    assert regrouping(Layout.of((3, 4), [(0,), (1,)]), Layout.of((4, 3), [(0,), (1,)])) is None
    assert regrouping(Layout.of((2, 4), [(0, 1), ()]), Layout.of((2, 4), [(0,), (1,)])) is None
