"""Which copies of parameters updates can keep up to date, and that the order of communication leaves them so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.analysis.aliasing import mark_shadow_weights, marked_shadow_weights
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import Depend
from mspc.ops.math.arithmetic import Add
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import ApplyMomentum, AssignAdd
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.communication.schedule_communication import ScheduleCommunication
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.executor import Executor
from tests.copied_parameters import random_copies
from tests.runtime.two_streams import Alone


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
