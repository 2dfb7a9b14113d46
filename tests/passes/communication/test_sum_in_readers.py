"""sum_in_readers: what a norm waits for over two ranks is added up by the norm's kernel, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.nodes import seconds
from mspc.ir.graph import Graph
from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY, load_operators
from mspc.passes.communication.sum_in_readers import SumInReaders
from tests.texts import text_of

load_operators()
PROGRAMS = Path(__file__).with_name("sums.ir")
GROUP = 'group: "2-5004544844489628105", rank_list: (0, 1)'
ROWS = (
    'FusedElementwise(%1, %para2_y) primitive_attrs: {body: ("Add(x0, x1)", '
    '"ReduceMean(t0, keep_dims=true, axis=(1))", "Sub(t0, t1)"), returns: (2)}'
)


def graph_of(reader: str = ROWS, group: str = GROUP, results: str = "%2") -> Graph:
    text = text_of(PROGRAMS, "reader", reader=reader, group=group, results=results)
    return parse(text, REGISTRY, file="sums.ir", frames=True).main


def test_a_norm_behind_a_sum_adds_it_up() -> None:
    graph = graph_of()
    assert SumInReaders().run(graph)
    (reduction,) = (node for node in graph.nodes if node.op.is_collective)
    assert reduction.attrs == {"summed_by_reader": True}
    assert not SumInReaders().run(graph)


@pytest.mark.parametrize(
    ("reader", "group", "results"),
    [
        ("Add(%1, %para2_y)", GROUP, "%2"),
        (ROWS, GROUP.replace("(0, 1)", "(0, 1, 2)"), "%2"),
        (ROWS, GROUP, "%1"),
        (ROWS.replace("%1, %para2_y", "%para1_x, %para2_y"), GROUP, "%2"),
    ],
    ids=["no kernel along rows", "three ranks", "a result of the graph", "read by nobody"],
)
def test_others_keep_their_stream(reader: str, group: str, results: str) -> None:
    graph = graph_of(reader, group, results)
    assert not SumInReaders().run(graph)


def test_a_norm_works_while_the_parts_come() -> None:
    graph = graph_of()
    before = [seconds(node, H200) for node in graph.nodes]
    SumInReaders().run(graph)
    product, reduction, norm = (seconds(node, H200) for node in graph.nodes)
    assert [product, reduction] == before[:2]
    assert reduction + norm == pytest.approx(max(before[1:]))
