"""sum_joined: what is reduced as a whole, and what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.text.parser import parse
from mspc.ir.types import BFLOAT16, FLOAT32, TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Neg
from mspc.ops.modules import load_operators
from mspc.ops.op import REGISTRY
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.communication.sum_joined import SumJoined

load_operators()
MATRIX = "<Tensor[Float32], (8, 16)>"
HALF = "<Tensor[Float32], (8, 8)>"
SUM = 'primitive_attrs: {op: "sum", group: "2-5004544844489628105", rank_list: (0, 1)}'
PROGRAM = f"""\
#IR entry      : @sums
#Total subgraph: 1

#attrs         :
mode : "auto_parallel"
ranks : 2
rank : 0
#Total params  : 2

%para1_x: {MATRIX}
%para2_y: {HALF}

subgraph @sums() {{
  %0 = Neg(%para1_x)
      : ({MATRIX}) -> ({MATRIX})
  %1 = Neg(%para2_y)
      : ({HALF}) -> ({HALF})
  %2 = Split(%0) primitive_attrs: {{axis: AXIS, output_num: 2}}
      : ({MATRIX}) -> (<Tuple[Tensor[Float32]*2], TupleShape(PART, PART)>)
  %3 = TupleGetItem(%2) primitive_attrs: {{index: 0}}
      : (<Tuple[Tensor[Float32]*2], TupleShape(PART, PART)>) -> (<Tensor[Float32], PART>)
  %4 = TupleGetItem(%2) primitive_attrs: {{index: 1}}
      : (<Tuple[Tensor[Float32]*2], TupleShape(PART, PART)>) -> (<Tensor[Float32], PART>)
  %5 = AllReduce(OPERANDS) {SUM}
      : (SUMMED) -> (<Tuple[Tensor[Float32]*COUNT], TupleShape(SHAPES)>)
  %6 = TupleGetItem(%5) primitive_attrs: {{index: 0}}
      : (<Tuple[Tensor[Float32]*COUNT], TupleShape(SHAPES)>) -> (<Tensor[Float32], PART>)
  %7 = TupleGetItem(%5) primitive_attrs: {{index: COUNTED}}
      : (<Tuple[Tensor[Float32]*COUNT], TupleShape(SHAPES)>) -> (<Tensor[Float32], PART>)
  %8 = Neg(%6)
      : (<Tensor[Float32], PART>) -> (<Tensor[Float32], PART>)
  %9 = Neg(%7)
      : (<Tensor[Float32], PART>) -> (<Tensor[Float32], PART>)
  Return((RESULTS))
      : (RETURNED)
}}
"""


def graph_of(operands: str = "%3, %4", axis: int = 1, results: str = "%8, %9") -> Graph:
    part = "(8, 8)" if axis == 1 else "(4, 16)"
    shapes = [{"%1": "(8, 8)", "%0": "(8, 16)"}.get(name, part) for name in operands.split(", ")]
    returned = [{"%6": part, "%3": part}.get(name, part) for name in results.split(", ")]
    words = {
        "OPERANDS": operands, "RESULTS": results, "COUNTED": str(len(shapes) - 1), "COUNT": str(len(shapes)),
        "SUMMED": ", ".join(f"<Tensor[Float32], {shape}>" for shape in shapes), "SHAPES": ", ".join(shapes),
        "AXIS": str(axis), "RETURNED": ", ".join(f"<Tensor[Float32], {shape}>" for shape in returned), "PART": part,
    }  # fmt: skip
    text = PROGRAM
    for word, value in words.items():
        text = text.replace(word, value)
    return parse(text, REGISTRY, file="sums.ir", frames=True).main


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
    ("operands", "axis", "results"),
    [
        ("%3, %1, %4", 1, "%8, %9"),
        ("%3, %1", 1, "%8, %9"),
        ("%3, %3", 1, "%8, %9"),
        ("%3, %4", 1, "%8, %9, %6"),
        ("%3, %4", 1, "%8, %9, %3"),
    ],
    ids=["a sum that nobody reads", "one part alone", "one part twice", "a sum is a result", "a part is"],
)
def test_others_stay(operands: str, axis: int, results: str) -> None:
    graph = graph_of(operands, axis, results)
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
    summed = b.emit(AllReduce(op="sum", group="2-5004544844489628105", rank_list=(0, 1)), *operands)
    taken = [b.emit(TupleGetItem(i), summed) for i in range(len(operands))]
    graph.results, graph.returns_tuple = [b.emit(Neg(), each) for each in taken], True
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
    again = b.emit(AllReduce(op="sum", group="2-5004544844489628105", rank_list=(0, 1)), *sums, *pieces)
    graph.results = [b.emit(Neg(), b.emit(TupleGetItem(i), again)) for i in range(4)]
    assert SumJoined().run(graph)
    graph.verify()
    first, second = (node for node in graph.nodes if isinstance(node.op, AllReduce))
    assert [value.shape for value in first.inputs] == [(8, 24)]
    assert [value.shape for value in second.inputs] == [(8, 8), (8, 16), (8, 24)]
