"""MindSpore's own dumps are read, and what is printed of them is read back equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.opaque import GraphReference, Literal, Module, OpaqueOp, Symbol
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_module
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.op import load_operators
from tests.dumps import module_difference

DUMP = """\
# IR entry: @2_main_7
# Total subgraphs: 2

jit config {
jit_level: 
}

# Attrs:
training: 1
compile_phase: train.17.0

# Total params: 2
# Params:
%para1_x: <Tensor[Float32], (2, 32)> : [16, 32]
%para2_net.w: <Ref[Tensor[Float32]], (8, 16), ref_key=net.w, is_parameter, is_inplace>  :  has_default

Node counting information:
Total number of nodes: 3

subgraph attr:
defer_inline: 1
subgraph instance: 1_Net_5 : 0x56008aaa0cc0
# Parameters: 2, (<Tensor[Float32], (2, 32)>, <UMonad, NoShape>)
# In file net.py:32~33, 4~40/    def construct(self, x, y):/
subgraph @1_Net_5 parent: [subgraph @2_main_7](%para3_x, %para4_u) {
  %0(CNode_1) = Load($(@2_main_7:para2_net.w), %para4_u)
      : (<Ref[Tensor[Float32]], (8, 16), ref_key=net.w>, <UMonad, NoShape>) -> (<Tensor[Float32], (8, 16)>)
  %1(out) = PrimFunc_MatMul(%para3_x, %0, Bool(0), (I64(1), I64(8)), UMonad[U]) {instance name: matmul} \
primitive_attrs: {in_strategy: ((2, 4), (4, 1)), op: sum} cnode_primal_attrs: {id: "7"} \
{in_strategy: ((2, 4), (4, 1))}
      : (<Tensor[Float32], (2, 32)>, <Tensor[Float32], (8, 16)>, <Bool, NoShape>, <Tuple[Int64*2], \
TupleShape(NoShape, NoShape)>, <UMonad, NoShape>) -> (<Tensor[Float32], (2, 16)>)
      # Fullname with scope: (Default/net-Net/MatMul-op0)
      # In file net.py:19~23, 4~18/    def construct(self, x):/
      # In file net.py:20, 14~36/        out = self.matmul(x, self.w)/<~~This line of code can be shared by \
multiple nodes, and may be duplicated./
  Return(%1) cnode_attrs: {checkpoint: Bool(1)}
      : (<Tensor[Float32], (2, 16)>)
}
subgraph instance: 2_main_7 : 0x56008aaa0cc1
subgraph @2_main_7() {
  %0(loss) = call @1_Net_5(%para1_x, UMonad[U])
      : (<Tensor[Float32], (2, 32)>, <UMonad, NoShape>) -> (<Tensor[Float32], (2, 16)>)
  %1(s) = Add(%0, Tensor(shape=[2, 16], dtype=Float32, value=
[[ 1.0e+0  1.0e+0 ...]]))
      : (<Tensor[Float32], (2, 16)>, <Tensor[Float32], (2, 16), value=...>) -> (<Tensor[Float32], (2, 16)>)
  Return(%1)
      : (<Tensor[Float32], (2, 16)>)
}
"""


OLDER_DUMP = """\
#IR entry      : @7_construct.24
#Total subgraph: 1

#attrs         :
training : 1
#Total params  : 2

%para1_x : <Tensor[Float32], (16, 32)>
%para2_w : <Ref[Tensor[Float32]], (8, 16), ref_key=:w>  :  has_default

subgraph instance: 7_construct.24 : 0x55d7
subgraph @7_construct.24() {
  %1([CNode]520) = Load(%para2_w, U) cnode_attrs: {checkpoint: true}
      : (<Ref[Tensor[Float32]], (8, 16), ref_key=:w>, <UMonad>) -> (<Tensor[Float32], (8, 16)>)
  %2(equivout) = MatMul(%para1_x, %1) {instance name: matmul} primitive_attrs: {input_names: [x1, x2], \
transpose_b: false, group: 4-6301-8, fusion: 0} {in_strategy: ((2, 4), (4, 1))}
      : (<Tensor[Float32], (16, 32)>, <Tensor[Float32], (8, 16)>) -> (<Tensor[Float32], (16, 16)>)
      # scope: (Default/network-Net)
      # In file net.py(45)/        out = self.matmul(x, self.w)/
  Return(%2)
      : (<Tensor[Float32], (16, 16)>)
}
# order:
#   1: @7_construct.24:[CNode]520{[0]: ValueNode <PrimitivePy> Load, [1]: w}
"""


LOOP_DUMP = """\
# IR entry: @42_1_main_172
# Total subgraphs: 3

# Attrs:
auto_parallel_finish_pre_action: 1

# Total params: 2
# Params:
%para1_x: <Tensor[Float32], (4)> : [4]  :  <Float32xDefaultFormat[const vector]{4}>  :  IsWeight: false
%para2_: <Ref[Tensor[Float32]], (4), ref_key=w, is_parameter>  :  has_default

Node counting information:
Total number of nodes: 12

subgraph attr:
is_while_header: 1
subgraph instance: 43_3_↵_main_174 : 0x55a476338440
# Parameters: 2, (<Tensor[Int32], ()>, <Tensor[Float32], (4)>)
subgraph @43_3_↵_main_174(%para3_фi, %para4_фx) {
  %0(CNode_171) = PrimFunc_Less(%para3_фi, I64(3)) cnode_attrs: {is_dynamic_len: Bool(0)}
      : (<Tensor[Int32], ()>, <Int64, NoShape>) -> (<Tensor[Bool], ()>)
      : (<Int32xDefaultFormat[const vector]{}>, <Int64xDefaultFormat[const vector]{}>) -> \
(<BoolxDefaultFormat[const vector]{}>)
      : (Tensor, Scalar) -> (Tensor)
      # Fullname with scope: (Default/Less-op1)
  %1(CNode_227) = Partial(@44_4_↻_main_204, %para3_фi, %para4_other) primitive_attrs: {side_effect_propagate: I64(1)}
      : (<Func, NoShape>, <Tensor[Int32], ()>, <Tensor[Float32], (4)>) -> (<Func, NoShape>)
      : (Tensor, Tensor, Tensor) -> (TupleUnfold)
  %2(CNode_229) = Switch(%0, %1, {})
      : (<Tensor[Bool], ()>, <Func, NoShape>, <Func, NoShape>) -> (<Func, NoShape>)
  %3(CNode_230) = %2[@FuncUnion(@44_4_↻_main_204, @43_3_↵_main_174)]()
      : () -> (<Tensor[Float32], (4)>)
  Return(%3)
      : (<Tensor[Float32], (4)>)
      : (<Float32xDefaultFormat[const vector]{4}>)
}

subgraph attr:
indirect: 1
indirect: 1
subgraph instance: 44_4_↻_main_204 : 0x55a476338441
subgraph @44_4_↻_main_204(%para5_фi, %para6_фx) {
  %0(x) = PrimFunc_Mul(%para6_фx, $(@42_1_main_172:para2_other))
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  %1(CNode_3) = call @43_3_↵_main_174(%para5_фi, %0)
      : (<Tensor[Int32], ()>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%1)
      : (<Tensor[Float32], (4)>)
}

subgraph attr:
subgraph instance: 42_1_main_172 : 0x55a476338442
subgraph @42_1_main_172() {
  %0(CNode_4) = call @43_3_↵_main_174(I64(0), %para1_x)
      : (<Int64, NoShape>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}
"""
"""A loop of MindSpore 2.10, as graphs that call each other, with marks of loops in their names."""


@pytest.fixture
def module() -> Module:
    return parse(DUMP, load_operators(), "dump.ir")


def test_dump_becomes_graphs(module: Module) -> None:
    assert (module.entry, module.dialect) == ("2_main_7", "mindspore")
    assert [graph.name for graph in module.graphs] == ["1_Net_5", "2_main_7"]
    assert module.attrs == {"training": 1, "compile_phase": "train.17.0"}
    assert module.graphs[0].attrs == {"defer_inline": 1}
    assert [(p.name, p.kind, p.attrs) for p in module.main.parameters] == [
        ("x", "input", {}),
        ("net.w", "parameter", {"is_inplace": True}),
    ]
    assert [p.name for p in module.graphs[0].parameters] == ["x", "u"]


def test_dump_operators_stay_opaque_with_their_facts(module: Module) -> None:
    load, product = module.graphs[0].nodes
    assert load.op == OpaqueOp("Load")
    assert product.op == OpaqueOp("MatMul", {"op": Symbol("sum")})
    assert product.type == TensorType(FLOAT32, (2, 16))
    assert (product.name, product.instance, product.scope) == ("out", "matmul", "Default/net-Net/MatMul-op0")
    assert product.in_strategy == product.strategy == ((2, 4), (4, 1))
    assert product.attrs == {"id": "7"}
    literals = [value.value for value in product.inputs[2:] if isinstance(value, Literal)]
    assert literals == [False, (1, 8), Symbol("UMonad[U]")]
    assert [(str(frame), frame.text) for frame in product.frames] == [
        ("net.py:20:15", "        out = self.matmul(x, self.w)"),
        ("net.py:19:5", "    def construct(self, x):"),
    ]


def test_dump_calls_and_references_are_kept(module: Module) -> None:
    call, add = module.main.nodes
    assert call.op.name == "call"
    (callee, *_), (first, *_) = call.inputs, module.graphs[0].nodes[0].inputs
    assert isinstance(callee, Literal)
    assert callee.value == GraphReference("1_Net_5")
    assert isinstance(first, Literal)
    assert first.value == GraphReference("2_main_7", "para2_net.w")
    assert isinstance(add.inputs[1], Literal)


def test_older_dump_is_read() -> None:
    module = parse(OLDER_DUMP, load_operators(), "dump.ir")
    load, product = module.main.nodes
    assert module.attrs == {"training": 1}
    assert (load.name, product.name) == ("[CNode]520", "equivout")
    names = (Symbol("x1"), Symbol("x2"))
    attributes = {"input_names": names, "transpose_b": False, "group": Symbol("4-6301-8"), "fusion": 0}
    assert product.op == OpaqueOp("MatMul", attributes)
    assert [str(frame) for frame in product.frames] == ["net.py:45"]
    assert module_difference(module, parse(print_module(module), {})) == ""


def test_a_loop_is_graphs_that_call_each_other() -> None:
    module = parse(LOOP_DUMP, load_operators(), "dump.ir")
    assert [graph.name for graph in module.graphs] == ["43_3_↵_main_174", "44_4_↻_main_204", "42_1_main_172"]
    head, body, main = module.graphs
    assert module.main is main
    assert [node.op.name for node in head.nodes] == ["Less", "Partial", "Switch", "call"]
    function, *given = head.nodes[1].inputs
    assert isinstance(function, Literal)
    assert function.value == GraphReference("44_4_↻_main_204")
    assert given == head.parameters  # by their numbers where names differ
    assert head.nodes[3].inputs == [head.nodes[2]]
    assert body.attrs == {"indirect": 1}
    assert [parameter.name for parameter in main.parameters] == ["x", ""]
    again = print_module(module)
    assert module_difference(module, parse(again, {})) == ""
    assert print_module(parse(again, {})) == again


def test_windows_line_ends_change_nothing() -> None:
    assert module_difference(parse(DUMP.replace("\n", "\r\n"), {}), parse(DUMP, {})) == ""


def test_printed_dump_reads_back_equal(module: Module) -> None:
    text = print_module(module)
    again = parse(text, load_operators())
    assert module_difference(module, again) == ""
    assert print_module(again) == text


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("call @1_Net_5", "call @1_Net_6", "dump.ir:38:14: error: unknown graph @1_Net_6"),
        ("para2_net.w)", "para9_v)", "dump.ir:26:22: error: the graph @2_main_7 has no value para9_v"),
        ("(%para3_x, %0, ", "(%para3_x, %9, ", "dump.ir:28:39: error: unknown value %9"),
    ],
)
def test_damaged_dump_is_refused(good: str, bad: str, message: str) -> None:
    with pytest.raises(MspcError) as caught:
        parse(DUMP.replace(good, bad), {}, "dump.ir")
    assert str(caught.value).split("\n")[0] == message


def test_all_conformance_dumps_read_back_equal(conformance: Path) -> None:
    files = sorted((conformance / "dumps").glob("*.ir"))
    assert len(files) > 80
    registry = load_operators()
    for file in files:
        module = parse(file.read_text("utf-8"), registry, file.name)
        assert all(isinstance(node.op, OpaqueOp) for graph in module.graphs for node in graph.nodes)
        assert module_difference(module, parse(print_module(module), registry)) == "", file.name
