"""What a few ranks run otherwise than others is told where it is one change, and may be why they wait."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import Neg
from mspc.ops.math.elementwise import Exp, Log
from mspc.ops.nn.activation import Tanh
from mspc.verify.scale.blame import odd_one
from mspc.verify.scale.rank_kinds import RankKind

OPS = (Neg, Exp, Log, Tanh)


def kind(ranks: Sequence[int], order: Sequence[int]) -> RankKind:
    """Ranks that apply some operators to one parameter, in an order."""
    parameter = Parameter("x", TensorType(FLOAT32, (4,)))
    builder = Builder(Graph("net"))
    for number in order:
        builder.emit(OPS[number](), parameter)
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [parameter], builder.nodes, builder.nodes[:1]
    return RankKind(tuple(ranks), graph, mesh=(len(ranks),))


def told(*kinds: RankKind) -> Node | None:
    found = odd_one(kinds)
    return None if found is None else found.node


def test_a_node_that_is_moved() -> None:
    others = kind((0, 1, 2), (0, 1, 2, 3))
    for order, place in (((1, 2, 3, 0), 3), ((3, 0, 1, 2), 0)):
        own = kind((3,), order)
        assert told(others, own) is own.graph.nodes[place]
    assert told(others, kind((3,), (3, 2, 1, 0))) is None


def test_kinds_that_wait_for_what_is_run_otherwise() -> None:
    others, own = kind((0, 1, 2), (0, 1, 2)), kind((3,), (0, 3, 2))
    found = odd_one((others, own))
    assert found is not None
    assert found.may_stop([], [own])
    assert found.may_stop([own], [])
    assert not found.may_stop([others], [others])
    half = odd_one((kind((0,), (0, 1, 2)), kind((1,), (0, 3, 2))))
    assert half is not None
    assert half.even
    assert not half.may_stop([], [half.kind])
    assert half.kind.runs_any([half.node])
    assert not own.runs_any([half.node])
    assert not own.runs_any([])
