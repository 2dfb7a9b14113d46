"""sum_joined: what is reduced as a whole, and what stays as it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Parameter as CellParameter
from mspc import Tensor, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.nodes import seconds
from mspc.passes.communication.stay_on_main_stream import StayOnMainStream
from mspc.passes.communication.sum_in_readers import SumInReaders
from mspc.passes.communication.sum_joined import SumJoined
from tests.graphs import BFLOAT16, FLOAT32, REGISTRY, Builder, Graph, Node, Parameter, TensorType, Value, parse
from tests.mindspore_api.nn.training import Training
from tests.operators import AllReduce, Cast, Neg, Split, StridedSlice, TupleGetItem
from tests.texts import text_of

SUM = AllReduce(op="sum", group="2-5004544844489628105", rank_list=(0, 1))


def summed(b: Builder, operands: list[Value]) -> list[Node]:
    """The sums of several tensors over ranks."""
    total = b.emit(SUM, *operands)
    return [b.emit(TupleGetItem(i), total) for i in range(len(operands))]


def graph_of(operands: str = "part 0, part 1", axis: int = 1, result: str = "") -> Graph:
    """Two parts of a matrix, and what else is named, are summed over ranks, and the first and the last sum read."""
    graph = Graph("sums")
    graph.attrs = {"mode": "auto_parallel", "ranks": 2, "rank": 0}
    graph.parameters = [Parameter(n, TensorType(FLOAT32, shape)) for n, shape in (("x", (8, 16)), ("y", (8, 8)))]
    b = Builder(graph)
    named: dict[str, Value] = {"other": b.emit(Neg(), graph.parameters[1])}
    split = b.emit(Split(axis, 2), b.emit(Neg(), graph.parameters[0]))
    named |= {f"part {i}": b.emit(TupleGetItem(i), split) for i in range(2)}
    names = operands.split(", ")
    total = b.emit(SUM, *[named[name] for name in names])
    sums = [b.emit(TupleGetItem(i), total) for i in (0, len(names) - 1)]
    named["sum"] = sums[0]
    graph.results = [*(b.emit(Neg(), each) for each in sums), *([named[result]] if result else [])]
    graph.returns_tuple = True
    return graph


@pytest.mark.parametrize("axis", [0, 1])
def test_all_parts_of_a_matrix_travel_as_one(axis: int) -> None:
    graph = graph_of(axis=axis)
    assert SumJoined().run(graph)
    graph.verify()
    assert [node.op.name for node in graph.nodes if node.op.name in ("AllReduce", "Split")] == ["AllReduce", "Split"]
    (reduction,) = (node for node in graph.nodes if node.op.name == "AllReduce")
    assert [value.shape for value in reduction.inputs] == [(8, 16)]
    assert not SumJoined().run(graph)


@pytest.mark.parametrize(
    ("operands", "result"),
    [
        ("part 0, other, part 1", ""),
        ("part 0, other", ""),
        ("part 0, part 0", ""),
        ("part 0, part 1", "sum"),
        ("part 0, part 1", "part 0"),
    ],
    ids=["a sum that nobody reads", "one part alone", "one part twice", "a sum is a result", "a part is"],
)
def test_others_stay(operands: str, result: str) -> None:
    graph = graph_of(operands, result=result)
    before = list(graph.nodes)
    assert not SumJoined().run(graph)
    assert graph.nodes == before


def sliced(shape: tuple[int, ...], ranges: list[tuple[tuple[int, int], ...]], casts: list[bool]) -> Graph:
    """A product's slices, some cast to Float32, are summed over ranks."""
    graph = Graph("sliced")
    graph.attrs = {"mode": "auto_parallel", "ranks": 2, "rank": 0}
    graph.parameters = [Parameter("x", TensorType(BFLOAT16, shape))]
    b = Builder(graph)
    source = b.emit(Neg(), graph.parameters[0])
    operands: list[Value] = []
    for each, cast in zip(ranges, casts, strict=True):
        begin, end = (tuple(numbers) for numbers in zip(*each, strict=True))
        part = b.emit(StridedSlice(begin=begin, end=end, strides=(1,) * len(begin)), source)
        operands.append(b.emit(Cast(FLOAT32), part) if cast else part)
    graph.results, graph.returns_tuple = [b.emit(Neg(), each) for each in summed(b, operands)], True
    return graph


@pytest.mark.parametrize("cast", [True, False])
@pytest.mark.parametrize(
    ("shape", "ranges"),
    [
        ((8, 24), [((0, 8), (8, 24)), ((0, 8), (0, 8))]),
        ((24, 8), [((0, 16), (0, 8)), ((16, 20), (0, 8)), ((20, 24), (0, 8))]),
        ((24,), [((16, 24),), ((0, 16),)]),
    ],
    ids=["columns", "rows", "a vector"],
)
def test_slices_of_all_sizes_travel_as_one(shape: tuple[int, ...], ranges: Any, cast: bool) -> None:
    graph = sliced(shape, ranges, [cast] * len(ranges))
    types = [value.type for value in graph.results]
    assert SumJoined().run(graph)
    graph.verify()
    (reduction,) = (node for node in graph.nodes if isinstance(node.op, AllReduce))
    assert [value.type for value in reduction.inputs] == [TensorType(FLOAT32 if cast else BFLOAT16, shape)]
    assert [value.type for value in graph.results] == types
    made = [node.op for node in graph.nodes if isinstance(node.op, StridedSlice)]
    assert sorted(tuple(zip(op.begin, op.end, strict=True)) for op in made) == sorted(ranges)
    assert not SumJoined().run(graph)


@pytest.mark.parametrize(
    "ranges",
    [
        [((0, 8), (8, 24)), ((0, 8), (0, 4))],
        [((0, 8), (8, 24)), ((0, 8), (0, 16))],
        [((0, 8), (8, 24)), ((0, 4), (0, 8))],
        [((0, 8), (0, 24)), ((0, 8), (0, 24))],
    ],
    ids=["a gap", "an overlap", "half the rows", "the whole twice"],
)
def test_slices_that_are_no_whole_stay(ranges: Any) -> None:
    graph = sliced((8, 24), ranges, [True] * len(ranges))
    before = list(graph.nodes)
    assert not SumJoined().run(graph)
    assert graph.nodes == before


def test_a_sum_that_is_summed_again_is_cut_ahead_of_that() -> None:
    graph = sliced((8, 24), [((0, 8), (0, 8)), ((0, 8), (8, 24))], [False, False])
    b = Builder(graph)
    other = b.emit(Neg(), graph.parameters[0])
    pieces = [b.emit(StridedSlice(begin=(0, n), end=(8, n + 12), strides=(1, 1)), other) for n in (0, 12)]
    sums = [value.inputs[0] for value in graph.results if isinstance(value, Node)]
    graph.results = [b.emit(Neg(), each) for each in summed(b, [*sums, *pieces])]
    assert SumJoined().run(graph)
    graph.verify()
    first, second = (node for node in graph.nodes if isinstance(node.op, AllReduce))
    assert [value.shape for value in first.inputs] == [(8, 24)]
    assert [value.shape for value in second.inputs] == [(8, 8), (8, 16), (8, 24)]


VALUES = np.random.default_rng(0).uniform(0.5, 1.5, 8)


class Step(nn.Cell):
    """(square of a reduction over all of a weight, its gradient in the weight)."""

    def __init__(self, reduction: Any, parts: int) -> None:
        super().__init__()
        self.w, self.one = CellParameter(Tensor(VALUES), "w"), Tensor(np.float64(1))
        self.product, self.reduction = ops.Mul().shard(((parts,), ())), reduction
        self.both = ops.value_and_grad(self.loss, None, [self.w])

    def loss(self, x: Any) -> Any:
        found = self.reduction(self.product(self.w, self.one), 0)
        return found * found

    def construct(self, x: Any) -> Any:
        value, gradients = self.both(x)
        return value, gradients[0] + 0.0


@pytest.mark.parametrize("reduction", [ops.reduce_prod, ops.reduce_max, ops.reduce_min])
def test_terms_of_one_gradient(reduction: Any) -> None:
    x = [(np.zeros(8, np.float32),)]
    expected = Training(Step(reduction, 1), [(8,)]).run(x)[0]
    for parts in (2, 4):
        found = Training(Step(reduction, parts), [(8,)], 4, "semi_auto_parallel").run(x)[0]
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)


PROGRAMS = Path(__file__).with_name("sums.ir")
GROUP = 'group: "2-5004544844489628105", rank_list: (0, 1)'
ROWS = (
    'FusedElementwise(%1, %para2_y) primitive_attrs: {body: ("Add(x0, x1)", '
    '"ReduceMean(t0, keep_dims=true, axis=(1))", "Sub(t0, t1)"), returns: (2)}'
)


def reader_graph_of(reader: str = ROWS, group: str = GROUP, results: str = "%2") -> Graph:
    text = text_of(PROGRAMS, "reader", reader=reader, group=group, results=results)
    return parse(text, REGISTRY, file="sums.ir", frames=True).main


def test_a_norm_behind_a_sum_adds_it_up() -> None:
    graph = reader_graph_of()
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
    graph = reader_graph_of(reader, group, results)
    assert not SumInReaders().run(graph)


def test_a_norm_works_while_the_parts_come() -> None:
    graph = reader_graph_of()
    before = [seconds(node, H200) for node in graph.nodes]
    SumInReaders().run(graph)
    product, reduction, norm = (seconds(node, H200) for node in graph.nodes)
    assert [product, reduction] == before[:2]
    assert reduction + norm == pytest.approx(max(before[1:]))


STAY_SUM = (
    'primitive_attrs: {op: "sum", group: "2-5004544844489628105", rank_list: (0, 1)} '
    'cnode_attrs: {stream: "communication"}'
)


def test_only_what_is_small_and_waited_for_at_once_changes_its_stream() -> None:
    graph = parse(text_of(PROGRAMS, "stream", sum=STAY_SUM), REGISTRY, file="sums.ir", frames=True).main
    assert StayOnMainStream().run(graph)
    assert [node.attrs.get("stream") for node in graph.nodes if node.op.is_collective] == [None, "communication"]
    assert not StayOnMainStream().run(graph)
