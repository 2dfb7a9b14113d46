"""fuse_updates: which updates wait for which sums of gradients."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mspc.analysis.aliasing import mark_shadow_weights, marked_shadow_weights
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, TensorType, TupleType
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate, unchanged_at_zero
from mspc.ops.optim.optimizer import SGD, ApplyMomentum, Assign, AssignAdd, AssignSub, Update
from mspc.ops.tensor.embedding import GatherGrad, UnsortedSegmentSum
from mspc.ops.tensor.reshape import Cast, ReduceSum, Reshape
from mspc.passes.communication.schedule_communication import ScheduleCommunication
from mspc.passes.fusion.fuse_elementwise import FuseElementwise
from mspc.passes.fusion.fuse_updates import LARGE_SUM, FuseUpdates
from mspc.passes.fusion.update_rows import UpdateRows
from mspc.passes.lib.unused_states import stateless_nodes
from tests.copied_parameters import random_copies
from tests.errors import error_of
from tests.executors import Executor, NumPyBackend, OneRank, parse_passes, run_passes
from tests.graphs import Builder, Graph, MspcError, Node, Op, Parameter, Value
from tests.interpret import random_feeds, run_global
from tests.operators import Add, AllReduce, Concat, Depend, GroupedRowUpdate, Mul, Neg, Square, Sub, TupleGetItem
from tests.passes.fusion.written import WrittenGraph, graph_of
from tests.runtime.graphs import GraphMaker
from tests.runtime.two_streams import Alone

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


PLAIN = FusedUpdate(("Mul(x1, x2)", "Sub(x0, t0)"), (1,), (2,))
DECAYED = FusedUpdate(("Mul(x0, x3)", "Add(x1, t0)", "Mul(t1, x2)", "Sub(x0, t2)"), (3,), (2, 3))


class Table(WrittenGraph):
    """A graph that updates a parameter `w` by the sum of rows that `ids` name."""

    def __init__(self, axis: int = 0) -> None:
        super().__init__()
        turn = 1 - 2 * axis
        self.w, self.rate = self.parameter("w", (8, 4)[::turn], kind="parameter"), self.parameter("rate", ())
        self.ids = self.parameter("ids", (6,), INT32, "parameter")
        self.sum: Value = self.b.emit(GatherGrad(8, axis), self.parameter("rows", (6, 4)[::turn]), self.ids)

    def update(self, op: Update = PLAIN, *operands: Value) -> None:
        node = self.b.emit(op, *(operands or (self.w, self.sum, self.rate)))
        assert isinstance(node, Node)
        node.phase = "update"
        self.graph.results.append(node)

    def names(self) -> str:
        """The operators behind the pass."""
        made = run_passes(self.graph, parse_passes("update_rows"))
        made.verify()
        return " ".join(node.op.name for node in made.nodes)


def of_a_sum_that_others_read(table: Table) -> None:
    table.graph.results.append(table.b.emit(Neg(), table.sum))
    table.update()


def of_a_sum_that_is_a_result(table: Table) -> None:
    table.graph.results.append(table.sum)
    table.update()


def of_a_sum_over_ranks(table: Table) -> None:
    table.sum = table.b.emit(AllReduce(group="hccl_world_group", rank_list=(0, 1)), table.sum)
    table.update()


def that_changes_every_row(table: Table) -> None:
    table.update(DECAYED, table.w, table.sum, table.rate, table.rate)


def by_integers_that_change_before(table: Table) -> None:
    table.b.emit(AssignAdd(), table.ids, table.parameter("more", (6,), INT32))
    table.update()


@pytest.mark.parametrize(
    ("update", "axis", "left"),
    [
        (Table.update, 0, "GroupedRowUpdate TupleGetItem"),
        (Table.update, 1, "GatherGrad FusedUpdate"),
        (of_a_sum_that_others_read, 0, "GatherGrad Neg FusedUpdate"),
        (of_a_sum_that_is_a_result, 0, "GatherGrad FusedUpdate"),
        (of_a_sum_over_ranks, 0, "GatherGrad AllReduce FusedUpdate"),
        (that_changes_every_row, 0, "GatherGrad FusedUpdate"),
        (by_integers_that_change_before, 0, "GatherGrad AssignAdd FusedUpdate"),
    ],
)
def test_which_updates_take_the_rows(update: Callable[[Table], None], axis: int, left: str) -> None:
    table = Table(axis)
    update(table)
    assert table.names() == left


def test_sgd_without_momentum_takes_rows_at_a_run() -> None:
    """Parameters are those of the update with all states, to the bit."""
    found = []
    for by_rows in (False, True):
        table = Table()
        states = [table.parameter(name, (8, 4), kind="parameter") for name in ("accum", "stat")]
        momentum = table.parameter("momentum", (), kind="parameter")
        table.update(SGD(), table.w, table.sum, table.rate, states[0], momentum, states[1])
        graph = table.graph
        if by_rows:
            for stateless in stateless_nodes(graph, lambda scalar: 0.0):
                stateless.apply(stateless.node)
            assert UpdateRows().run(graph)
            assert [node.op.name for node in graph.nodes] == ["GroupedRowUpdate", "TupleGetItem"]
        draw = np.random.default_rng(3)
        held = {"w": draw.standard_normal((8, 4)), "accum": np.zeros((8, 4)), "stat": np.ones((8, 4)),
                "momentum": np.zeros(())}  # fmt: skip
        held = {name: value.astype(np.float32) for name, value in held.items()}
        held["ids"] = np.array([3, 1, 3, 7, 3, 1], np.int32)
        held["w"][0] = (-0.0, np.nan, np.inf, 0.0)
        rows = draw.standard_normal((6, 4)).astype(np.float32)
        Executor(graph, NumPyBackend(OneRank()), held).run([np.array(0.1, np.float32), rows])
        found.append(held["w"])
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize(
    ("body", "unchanged"),
    [
        (("Mul(x1, x2)", "Sub(x0, t0)"), True),
        (("Mul(x2, x1)", "Identity(t0)", "Sub(x0, t1)"), True),
        (("Sub(x0, x1)", "Mul(x1, x2)", "Sub(t0, t1)"), True),
        (("Neg(x2)", "Mul(x1, t0)", "Add(x0, t1)"), True),
        (("Neg(x1)", "Mul(t0, x2)", "Add(t1, x0)"), True),
        (("Cast(x1, dst_type=Float32)", "Mul(t0, x2)", "Sub(x0, t1)"), True),
        (("Mul(x1, x2)", "Add(x0, t0)"), False),  # -0 + +0 is +0
        (("Neg(x1)", "Mul(t0, x2)", "Sub(x0, t1)"), False),
        (("Mul(x1, x2)", "Sub(t0, x0)"), False),
        (("Mul(x1, x0)", "Mul(t0, x2)", "Sub(x0, t1)"), False),  # 0 * infinity is NaN
        (("RealDiv(x1, x2)", "Sub(x0, t0)"), False),
        (("Exp(x1)", "Mul(t0, x2)", "Sub(x0, t1)"), False),
        (("Mul(x0, x2)", "Sub(t0, x1)"), False),
    ],
)
def test_lines_say_where_an_update_changes_nothing(body: tuple[str, ...], unchanged: bool) -> None:
    update = FusedUpdate(body, (len(body) - 1,), (2,))
    assert unchanged_at_zero(update, 1) == unchanged
    if unchanged:
        held = np.array([-0.0, 0.0, 1.5, -3e-42, np.inf, -np.inf, 3e38], np.float32)
        for rate in (0.0, 0.1, 3e38):
            made = np.array(held)
            update.run(NumPyBackend(OneRank()), made, np.zeros_like(held), np.array(rate, np.float32))
            assert made.tobytes() == held.tobytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sums": ()}, "GroupedRowUpdate has no members; it needs at least one"),
        ({"sums": ("Neg()",)}, "Neg does not add rows up by integers"),
        ({"update": "Add()"}, "GroupedRowUpdate: 'Add()' is no FusedUpdate(key=value) without operands"),
        ({"gradient": 0}, "GroupedRowUpdate: operand 0 of LINE can be no gradient"),
        ({"gradient": 2}, "GroupedRowUpdate: operand 2 of LINE can be no gradient"),
        ({"update": DECAYED}, "GroupedRowUpdate: LINE changes parameters although operand 1 is 0"),
    ],
)
def test_bad_groups_are_named(fields: dict[str, Any], message: str) -> None:
    good = GroupedRowUpdate.of(PLAIN, 1, [GatherGrad(8)])
    if isinstance(fields.get("update"), FusedUpdate):
        error = error_of(GroupedRowUpdate.of, fields["update"], 1, [GatherGrad(8)])
        assert message.partition("LINE")[2] in error.message
        return
    error = error_of(GroupedRowUpdate, **({"update": good.update, "gradient": 1, "sums": good.sums} | fields))
    assert error.message == message.replace("LINE", good.update)


def test_operands_that_do_not_fit_are_named() -> None:
    op = GroupedRowUpdate.of(PLAIN, 1, [UnsortedSegmentSum(8)])
    w, rows, ids, rate = (TensorType(FLOAT32, (8, 4)), TensorType(FLOAT32, (6, 4)), TensorType(INT32, (6,)),
                          TensorType(FLOAT32, ()))  # fmt: skip
    assert [type.shape for type in op.infer(w, rows, ids, rate).elements] == [(8, 4)]
    with pytest.raises(MspcError, match=r"GroupedRowUpdate takes 4 tensors, not 3"):
        op.infer(w, rows, ids)
    with pytest.raises(MspcError, match=r"GatherGrad does not add up along the first axis"):
        GroupedRowUpdate.of(PLAIN, 1, [GatherGrad(8, 1)]).infer(
            TensorType(FLOAT32, (4, 8)), TensorType(FLOAT32, (4, 6)), ids, rate
        )


class Maker:
    """A graph with parameters of the given shapes, u of Float64."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.graph = Graph("net")
        self.w = [Parameter(f"w{i}", TensorType(FLOAT32, shape), "parameter") for i, shape in enumerate(shapes)]
        self.graph.parameters = list(self.w)

    def add(self, op: Op, *inputs: Value) -> Node:
        node = Node(op, list(inputs), op.infer(*[value.type for value in inputs]))  # type: ignore[arg-type]
        self.graph.nodes.append(node)
        return node

    def half(self, value: Value, dtype: Any = BFLOAT16) -> Node:
        return self.add(Cast(dtype), value)

    def read(self, value: Value) -> Node:
        return self.add(Add(), value, value)

    def update(self, *parameters: Parameter) -> None:
        for parameter in parameters:
            self.add(AssignAdd(), parameter, parameter)

    def update_of(self, parameter: Parameter) -> Node:
        return next(n for n in self.graph.nodes if n.op.name == "AssignAdd" and n.inputs[0] is parameter)

    def shadows(self) -> list[Node]:
        """The nodes that make copies, after marking."""
        mark_shadow_weights(self.graph)
        found = marked_shadow_weights(self.graph)
        assert [n for n in self.graph.nodes if n.attrs.get("kept")] == [
            n for n in self.graph.nodes if n in found.nodes()
        ]
        return list(found.copies)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_a_cast_whose_readers_stand_before_the_update_is_stored(dtype: Any) -> None:
    make = Maker((6, 5))
    half = make.half(make.w[0], dtype)
    make.read(half)
    make.update(make.w[0])
    assert make.shadows() == [half]
    (piece,) = marked_shadow_weights(make.graph).copies[half]
    assert (piece.begin, piece.columns, piece.pitch, piece.operand) == (0, 30, 30, 0)


def test_a_cast_that_is_needed_later_or_elsewhere_is_not_stored() -> None:
    def late(make: Maker, half: Node) -> None:
        make.update(make.w[0])
        make.read(half)

    def late_view(make: Maker, half: Node) -> None:
        shown = make.add(Reshape(shape=(8,)), make.add(Depend(), half, half))
        make.update(make.w[0])
        make.read(shown)

    def returned(make: Maker, half: Node) -> None:
        make.update(make.w[0])
        make.graph.results = [half]

    def twice(make: Maker, half: Node) -> None:
        make.update(make.w[0], make.w[0])

    def never(make: Maker, half: Node) -> None:
        make.update(make.w[1])

    def of_its_update(make: Maker, half: Node) -> None:
        rate = make.add(Reshape(shape=()), make.w[2])
        make.add(ApplyMomentum(), make.w[0], make.w[1], rate, make.add(Cast(FLOAT32), half), rate)

    for build, shadows in ((late, 0), (late_view, 0), (returned, 0), (twice, 0), (never, 0), (of_its_update, 1)):
        make = Maker((2, 4), (2, 4), (1,))
        half = make.half(make.w[0])
        build(make, half)
        assert len(make.shadows()) == shadows, build.__name__


def test_only_exact_copies_of_parameters_are_stored() -> None:
    make = Maker((8,))
    make.half(make.w[0], FLOAT64)
    make.half(make.read(make.w[0]))
    make.add(Concat(0), make.w[0], make.w[0])
    make.update(make.w[0])
    assert make.shadows() == []


def test_an_update_of_what_is_no_parameter_may_change_any() -> None:
    make = Maker((8,), (8,))
    make.half(make.w[0])
    make.update(make.w[0])
    make.add(AssignAdd(), make.add(Depend(), make.w[1], make.w[0]), make.w[1])
    assert make.shadows() == []


def test_parameters_side_by_side() -> None:
    make = Maker((4, 8), (4, 16), (2, 8), (4,), (4,))
    a, b, c, d, e = make.w
    columns = make.add(Concat(-1), make.half(a), make.half(b))
    rows = make.add(Concat(0), make.half(a), make.half(c))  # a has a copy
    biases = make.add(Concat(0), d, e)
    for value in (columns, rows, biases):
        make.read(value)
    make.update(*make.w)
    assert set(make.shadows()) == {columns, biases, rows.inputs[1]}
    found = marked_shadow_weights(make.graph).copies
    assert [(p.parameter, p.begin, p.columns, p.pitch) for p in found[columns]] == [(a, 0, 8, 24), (b, 8, 16, 24)]
    assert [(p.parameter, p.begin, p.columns, p.pitch) for p in found[biases]] == [(d, 0, 4, 4), (e, 4, 4, 4)]


def test_casts_of_a_concat_that_others_read_stay() -> None:
    make = Maker((4, 8), (4, 8))
    a, b = (make.half(w) for w in make.w)
    make.read(make.add(Concat(1), a, b))
    make.read(a)
    make.update(*make.w)
    assert make.shadows() == [a, b]


def test_rows_that_no_packs_divide_are_not_put_side_by_side() -> None:
    for shape, axis in (((4, 6), 1), ((3, 3), 0), ((2, 4, 8), 2)):
        make = Maker(shape, shape)
        make.read(make.add(Concat(axis), *make.w))
        make.update(*make.w)
        assert make.shadows() == []


def test_what_is_computed_twice_gives_way_to_the_copy() -> None:
    make = Maker((4, 8), (4, 8), (8, 8))
    results: list[Node] = []
    for _ in range(2):
        results.append(make.read(make.add(Concat(1), make.half(make.w[0]), make.half(make.w[1]))))
        results.append(make.read(make.half(make.w[2])))
    make.update(*make.w)
    late = make.half(make.w[2])
    make.read(late)
    assert len(make.shadows()) == 2
    names = [node.op.name for node in make.graph.nodes[:-5]]
    assert names == ["Cast", "Cast", "Concat", "Add", "Cast", "Add", "Add", "Add"]
    assert results[2].inputs == results[0].inputs
    assert results[3].inputs == results[1].inputs
    assert late in make.graph.nodes  # of the new value


@pytest.mark.parametrize("stored", [True, False])
def test_an_update_fills_no_gap_ahead_of_readers_of_the_copy(stored: bool) -> None:
    make = Maker((512, 512), (512, 512))
    half = make.half(make.w[0])
    reduced = make.add(AllReduce(rank_list=(0, 1)), make.half(make.w[1]))
    reader = make.add(Add(), reduced, half)
    make.update(make.w[0])
    if stored:
        assert make.shadows() == [half]
    ScheduleCommunication().run(make.graph)
    places = [make.graph.nodes.index(node) for node in (reader, make.update_of(make.w[0]))]
    assert (places[0] < places[1]) is stored


def test_the_order_of_communication_leaves_copies_to_be_stored() -> None:
    count = 0
    for seed in range(60):
        graph = random_copies(seed)
        values = {p.name: np.random.default_rng(seed).random((16, 16)).astype(np.float32) for p in graph.parameters}
        expected = _run(random_copies(seed, marked=False), values)
        before = marked_shadow_weights(graph)
        for node in graph.nodes:
            node.attrs.pop("stream", None)
        graph = run_passes(graph, parse_passes("schedule_communication"))
        after = marked_shadow_weights(graph)
        assert set(before.copies) == set(after.copies)
        count += len(after.copies)
        for one, other in zip(expected, _run(graph, values), strict=True):
            np.testing.assert_array_equal(one, other)
    assert count > 40


def _run(graph: Graph, values: dict[str, Any]) -> list[Any]:
    own = {name: array.copy() for name, array in values.items()}
    executor = Executor(graph, NumPyBackend(Alone(0, 2)), own)  # type: ignore[arg-type]
    return [*(np.array(r) for r in executor.run([own["x"]])), *own.values()]
