"""fuse_updates: which updates wait for which sums of gradients."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.types import BFLOAT16, FLOAT32, INT32, TensorType, TupleType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate
from mspc.ops.math.arithmetic import Add, Mul, Neg, Sub
from mspc.ops.math.elementwise import Square
from mspc.ops.op import load_operators
from mspc.ops.optim.optimizer import ApplyMomentum, Assign, AssignAdd, AssignSub
from mspc.ops.tensor.reshape import Cast, ReduceSum
from mspc.passes.fusion.fuse_elementwise import FuseElementwise
from mspc.passes.fusion.fuse_updates import LARGE_SUM, FuseUpdates
from tests.interpret import random_feeds, run_global
from tests.passes.fusion.written import graph_of
from tests.runtime.graphs import GraphMaker

SIDE = 1024
"""The threshold for a square gradient that is large."""


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


# fuse_updates: updates that are written as operators on elements become one, wherever nobody sees the difference.


load_operators()


def step_of(*types: TensorType) -> tuple[Graph, Builder, list[Parameter]]:
    graph, b, parameters = graph_of(*types)
    b.phase = "update"
    return graph, b, parameters


def joined(graph: Graph, fuse: bool = False) -> list[str]:
    """The operators behind the pass; what the graph gives and leaves in its parameters is checked bit by bit."""
    feeds = random_feeds(graph)
    expected = run_global(graph, feeds)
    if fuse:
        FuseElementwise().run(graph)
    FuseUpdates().run(graph)
    graph.verify()
    for got, want in zip(run_global(graph, feeds), expected, strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
    return [node.op.name for node in graph.nodes if not node.op.is_view]


def tensors(count: int, shape: tuple[int, ...] = (4, 6)) -> list[TensorType]:
    return [TensorType(FLOAT32, shape)] * count


@pytest.mark.parametrize("fuse", [False, True])
def test_many_parameters_of_one_optimizer_are_one_node(fuse: bool) -> None:
    shapes = [(4, 6), (7,), (2, 3, 5)]
    types = [type for shape in shapes for type in tensors(3, shape)]
    graph, b, (*parameters, rate) = step_of(*types, TensorType(FLOAT32, ()))
    for w, m, g in zip(parameters[::3], parameters[1::3], parameters[2::3], strict=True):
        moment = b.emit(Assign(), m, b.emit(Add(), b.emit(Mul(), m, rate), b.emit(Square(), g)))
        b.emit(AssignSub(), w, b.emit(Mul(), moment, rate))
    assert joined(graph, fuse) == ["GroupedUpdate"]
    assert isinstance(graph.nodes[0].op, GroupedUpdate)
    assert len(graph.nodes[0].op.member.writes) == 2


def test_a_gradient_of_halves_is_widened_as_it_is_read() -> None:
    graph, b, (w, rate, g) = step_of(*tensors(2), TensorType(BFLOAT16, (4, 6)))
    b.emit(AssignAdd(), w, b.emit(Mul(), b.emit(Cast(FLOAT32), g), rate))
    assert joined(graph) == ["FusedUpdate"]


def test_two_parameters_take_one_value_and_one_takes_an_operand() -> None:
    graph, b, (w, v, u, x) = step_of(*tensors(4))
    total = b.emit(Add(), w, x)
    graph.results = [b.emit(Assign(), w, total), b.emit(Assign(), v, total)]
    graph.results.append(b.emit(Assign(), u, b.emit(Neg(), graph.results[0])))
    graph.returns_tuple = True
    assert joined(graph) == ["FusedUpdate"]


def test_the_old_value_is_read_before_the_new_one_is_written() -> None:
    graph, b, (w, v, x) = step_of(*tensors(3))
    older, newer = b.emit(Neg(), w), b.emit(Add(), w, x)
    b.emit(Assign(), w, newer)
    b.emit(Assign(), v, b.emit(Mul(), older, newer))
    assert joined(graph) == ["FusedUpdate"]


def norm(b: Builder, value: Value) -> Value:
    return b.emit(ReduceSum(), b.emit(Square(), value))


def test_what_is_wanted_before_the_end_keeps_an_update_apart() -> None:
    graph, b, (w, m, g) = step_of(*tensors(3))
    moment = b.emit(Assign(), m, b.emit(Add(), m, g))
    step = b.emit(Mul(), moment, g)
    b.emit(Assign(), w, b.emit(Mul(), step, norm(b, step)))
    assert joined(graph) == ["FusedUpdate", "Mul", "Square", "ReduceSum", "FusedUpdate"]


@pytest.mark.parametrize("writes", [False, True])
def test_a_parameter_that_others_read_or_write_in_between_stays(writes: bool) -> None:
    graph, b, (w, m, g, x) = step_of(*tensors(4))
    moment = b.emit(Assign(), m, b.emit(Add(), m, g))
    graph.results = [norm(b, m)]
    if writes:
        b.emit(AssignAdd(), g, x)
    b.emit(Assign(), w, b.emit(Add(), moment, g))
    assert "FusedUpdate" not in joined(graph)


def test_numbers_of_other_kinds_and_other_shapes_stay() -> None:
    whole, row = TensorType(INT32, (4, 6)), TensorType(FLOAT32, (6,))
    graph, b, (count, w, bias) = step_of(whole, *tensors(1), row)
    b.emit(Assign(), count, b.emit(Add(), count, count))
    b.emit(Assign(), w, b.emit(Add(), w, bias))
    assert joined(graph) == ["Add", "Assign", "Add", "Assign"]


def drawn_step(seed: int) -> Graph:
    """Updates by drawn formulas, which read each other's parameters and results."""
    draw = random.Random(seed)
    graph, b, parameters = step_of(*tensors(5), TensorType(FLOAT32, ()), TensorType(FLOAT32, (1,)))
    values: list[Value] = [*parameters]
    for _ in range(16):
        x, y = draw.sample(_tensors(values)[-6:], 2)
        kind = draw.randrange(4)
        if kind == 0:
            values.append(b.emit(draw.choice([Assign, AssignAdd])(), draw.choice(parameters[:5]), x))
        elif kind == 1:
            values.append(b.emit(Mul(), x, draw.choice(parameters[5:])))
        else:
            values.append(b.emit(draw.choice([Add, Sub, Mul])(), x, draw.choice([y, *parameters[:5]])))
    graph.results = draw.sample(values[-3:], draw.randrange(1, 3))
    graph.returns_tuple = len(graph.results) > 1
    return graph


def _tensors(values: Sequence[Value]) -> list[Value]:
    return [value for value in values if value.shape == (4, 6)]


@pytest.mark.parametrize("seed", range(80))
def test_drawn_steps_leave_the_same_bits(seed: int) -> None:
    joined(drawn_step(seed), fuse=bool(seed % 2))


def test_enough_drawn_steps_are_joined() -> None:
    found = 0
    for seed in range(80):
        FuseUpdates().run(graph := drawn_step(seed))
        found += any(isinstance(node.op, FusedUpdate | GroupedUpdate) for node in graph.nodes)
    assert found > 30
