"""MindSpore's own dumps are read, and what is printed of them is read back equal."""

from pathlib import Path

import pytest

from mspc.ir.opaque import GraphReference, Literal, Module, OpaqueOp, Symbol
from mspc.ir.text.printer import print_module
from mspc.ops.op import load_operators
from tests.dumps import module_difference
from tests.errors import error_of
from tests.graphs import FLOAT32, TensorType, parse
from tests.texts import text_of

TEXTS = Path(__file__).with_name("mindspore_dumps.ir")

DUMP = text_of(TEXTS, "dump")


OLDER_DUMP = text_of(TEXTS, "older_dump")


LOOP_DUMP = text_of(TEXTS, "loop_dump")
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
    assert str(error_of(parse, DUMP.replace(good, bad), {}, "dump.ir")).split("\n")[0] == message


def test_all_conformance_dumps_read_back_equal(conformance: Path) -> None:
    files = sorted((conformance / "dumps").glob("*.ir"))
    assert len(files) > 80
    registry = load_operators()
    for file in files:
        module = parse(file.read_text("utf-8"), registry, file.name)
        assert all(isinstance(node.op, OpaqueOp) for graph in module.graphs for node in graph.nodes)
        assert module_difference(module, parse(print_module(module), registry)) == "", file.name
