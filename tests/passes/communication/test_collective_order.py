"""The order of collectives on the graph of all ranks: what golden cases do not show."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.point_to_point import Receive
from mspc.ops.math.arithmetic import Add, Neg
from mspc.passes.lib.collective_order import order_collectives


def test_what_is_received_without_an_operand_stays_where_the_script_has_it() -> None:
    """It is ready from the beginning on, but what it makes would be held from there on, too."""
    graph = Graph("received")
    x = Parameter("x", TensorType(FLOAT32, (2,)), kind="input")
    graph.parameters = [x]
    b = Builder(graph)
    first = b.emit(Neg(), x)
    second = b.emit(Neg(), first)
    received = b.emit(Receive(src_rank=1, shape=(2,)))
    graph.results = [b.emit(Add(), second, received)]
    before = list(graph.nodes)
    assert not order_collectives(graph)
    assert graph.nodes == before
