"""stay_on_main_stream: a view and a stored copy may stand ahead of what waits; large collectives keep their stream."""

from __future__ import annotations

from pathlib import Path

from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY, load_operators
from mspc.passes.communication.stay_on_main_stream import StayOnMainStream
from tests.texts import text_of

load_operators()
PROGRAMS = Path(__file__).with_name("sums.ir")
SUM = (
    'primitive_attrs: {op: "sum", group: "2-5004544844489628105", rank_list: (0, 1)} '
    'cnode_attrs: {stream: "communication"}'
)


def test_only_what_is_small_and_waited_for_at_once_changes_its_stream() -> None:
    graph = parse(text_of(PROGRAMS, "stream", sum=SUM), REGISTRY, file="sums.ir", frames=True).main
    assert StayOnMainStream().run(graph)
    assert [node.attrs.get("stream") for node in graph.nodes if node.op.is_collective] == [None, "communication"]
    assert not StayOnMainStream().run(graph)
