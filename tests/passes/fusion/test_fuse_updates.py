"""fuse_updates: which updates wait for which sums of gradients."""

from __future__ import annotations

from mspc.ir.graph import Node, Parameter
from mspc.ir.types import FLOAT32, TensorType, TupleType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.optim.optimizer import ApplyMomentum
from mspc.passes.fusion.fuse_updates import LARGE_SUM, FuseUpdates
from tests.runtime.graphs import GraphMaker

SIDE = 1024
"""Of a square gradient that is large."""


def update(make: GraphMaker, weight: Parameter, gradient: Node) -> None:
    """By an optimizer whose rate and momentum are one number."""
    known = {parameter.name: parameter for parameter in make.graph.parameters}
    number = known.get("number") or make.parameter("number", ())
    moment = make.parameter(f"m.{weight.name}", weight.shape, "parameter")
    operands = (weight, moment, number, gradient, number)
    make.node(ApplyMomentum(), *operands, shape=weight.shape).phase = "update"


def groups(*sides: int) -> list[int]:
    """How many members the updates have of parameters whose gradients, squares of these sides, travel one by one."""
    make = GraphMaker()
    for number, side in enumerate(sides):
        weight = make.parameter(f"w{number}", (side, side), "parameter")
        total = make.node(AllReduce(rank_list=(0, 1)), make.parameter(f"x{number}", (side, side)), shape=(side, side))
        total.attrs["mirror_user_id"] = weight.name
        update(make, weight, total)
    graph = make.graph
    FuseUpdates().run(graph)
    return [getattr(node.op, "count", 1) for node in graph.nodes if node.op.mutates]


def test_a_large_sum_is_waited_for_by_its_own_update_alone() -> None:
    assert SIDE * SIDE * 4 == LARGE_SUM
    assert groups(8, SIDE, 16, SIDE, 8) == [1, 1, 3]


def test_members_of_a_bucket_are_updated_together() -> None:
    make = GraphMaker()
    weights = [make.parameter(f"w{i}", (SIDE, SIDE), "parameter") for i in range(2)]
    gradients = [make.parameter(f"x{i}", (SIDE, SIDE)) for i in range(2)]
    bucket = make.node(AllReduce(rank_list=(0, 1)), *gradients)
    bucket.type = TupleType((TensorType(FLOAT32, (SIDE, SIDE)),) * 2)
    bucket.attrs["mirror_user_id"] = "w0, w1"
    items = [make.node(TupleGetItem(i), bucket, shape=(SIDE, SIDE)) for i in range(2)]
    for weight, item in zip(weights, items, strict=True):
        update(make, weight, item)
    FuseUpdates().run(make.graph)
    assert [node.op.name for node in make.graph.nodes if node.op.mutates] == ["GroupedUpdate"]
