"""sum_joined: what is reduced as a whole, and what stays as it is."""

from __future__ import annotations

import pytest

from mspc.ir.graph import Graph
from mspc.ir.text.parser import parse
from mspc.ops.modules import load_operators
from mspc.ops.op import REGISTRY
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


def test_all_parts_of_a_matrix_travel_as_one() -> None:
    graph = graph_of()
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
        ("%3, %4", 0, "%8, %9"),
        ("%3, %1", 1, "%8, %9"),
        ("%3, %3", 1, "%8, %9"),
        ("%3, %4", 1, "%8, %9, %6"),
        ("%3, %4", 1, "%8, %9, %3"),
    ],
    ids=["a sum that nobody reads", "rows", "one part alone", "one part twice", "a sum is a result", "a part is"],
)
def test_others_stay(operands: str, axis: int, results: str) -> None:
    graph = graph_of(operands, axis, results)
    before = list(graph.nodes)
    assert not SumJoined().run(graph)
    assert graph.nodes == before
