"""The printer's text is read back equal."""

import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.fragments import read_tensor
from mspc.ir.text.limits import DEEPEST_REGIONS
from mspc.ir.text.printer import constant_text, print_graph, value_text
from mspc.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    DType,
    StackType,
    TensorType,
    TupleType,
    dtype_of,
)
from tests.conftest import ROOT
from tests.errors import error_of
from tests.graphs import REGISTRY, Constant, Graph, MspcError, Node, Parameter, check_graph, difference, parse
from tests.ir.graphs import OPERATORS, SMALL_TEXT, graphs, programs, small_graph
from tests.ir.regions import LOOP, PROGRAM
from tests.ir.text.test_text_errors import mutated
from tests.serving import succeed
from tests.shares import share_of


def read_back(graph: Graph) -> str:
    """The difference between a graph and what its text reads back to."""
    text = print_graph(graph)
    again = parse(text, OPERATORS).main
    assert print_graph(again) == text
    return difference(graph, again)


def test_small_graph_prints_as_specified() -> None:
    assert print_graph(small_graph()) == SMALL_TEXT


def test_small_graph_reads_back_equal() -> None:
    assert read_back(small_graph()) == ""


@settings(max_examples=share_of(150), deadline=None)
@given(graphs())
def test_random_graph_reads_back_equal(graph: Graph) -> None:
    assert read_back(graph) == ""


@settings(max_examples=share_of(100), deadline=None)
@given(programs())
def test_random_graph_with_regions_reads_back_equal(graph: Graph) -> None:
    graph.verify()
    assert read_back(graph) == ""


def test_every_registered_operator_reads_back_equal() -> None:
    assert len(REGISTRY) > 50
    for cls in REGISTRY.values():
        for sample in cls.samples:
            op = cls(**sample.fields)
            dtypes = sample.dtypes or ("Float64",) * len(sample.shapes)
            graph = Graph("sample")
            for i, (shape, dtype) in enumerate(zip(sample.shapes, dtypes, strict=True)):
                graph.parameters.append(Parameter(f"x{i}", TensorType(dtype_of(dtype), shape)))
            graph.nodes = [Node(op, graph.parameters, TensorType(FLOAT32, ()))]
            graph.results = [graph.nodes[0]]
            assert difference(graph, parse(print_graph(graph), REGISTRY).main) == ""


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_every_16_bit_float_reads_back_to_its_bits(dtype: DType) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bits.view(dtype.numpy)
    again = read_tensor(constant_text(Constant(values)))
    assert isinstance(again, Constant)
    np.testing.assert_array_equal(again.value.view(np.uint16), bits)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, FLOAT32, "Tensor(shape=[], dtype=Float32, value=0.1)"),
        (0.1, FLOAT64, "Tensor(shape=[], dtype=Float64, value=0.1)"),
        (0.1, BFLOAT16, "Tensor(shape=[], dtype=BFloat16, value=0.1)"),
        (-0.0, FLOAT16, "Tensor(shape=[], dtype=Float16, value=-0.0)"),
        (1e-5, FLOAT32, "Tensor(shape=[], dtype=Float32, value=1e-05)"),
        (float("-inf"), FLOAT32, "Tensor(shape=[], dtype=Float32, value=-inf)"),
        (float("nan"), FLOAT32, "Tensor(shape=[], dtype=Float32, value=nan)"),
        ([1, 2], INT64, "Tensor(shape=[2], dtype=Int64, value=[1, 2])"),
        ([[True], [False]], BOOL, "Tensor(shape=[2, 1], dtype=Bool, value=[[true], [false]])"),
        (np.zeros((0, 3)), FLOAT32, "Tensor(shape=[0, 3], dtype=Float32, value=[])"),
        (np.full((4, 8), 2.0), FLOAT32, "Tensor(shape=[4, 8], dtype=Float32, value=2.0)"),
    ],
)
def test_constant_has_its_shortest_text(value: object, dtype: DType, text: str) -> None:
    constant = Constant(value, dtype)
    assert constant_text(constant) == text
    again = read_tensor(text)
    assert isinstance(again, Constant)
    assert again.type == constant.type
    assert again.value.tobytes() == constant.value.tobytes()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (1.0, "1.0"),
        (np.int64(7), "7"),
        (((8, 1),), "((8, 1))"),
        ((), "()"),
        (tuple(range(64)), f"({', '.join(map(str, range(64)))})"),
        (tuple(range(0, 4096, 4)), "0:4096:4"),
        (tuple(range(99, -1, -1)), "99:-1:-1"),
        (FLOAT32, "Float32"),
        ("a\n", '"a\\n"'),
        (Layout.of((2, 4), ((1,), (0,))), "Layout(2, 4) [1, 0]"),
        (NamedLayout((8,), ("tp",), (-1, 0)), "{device_matrix: (8), tensor_map: (-1, 0), alias_name: (tp)}"),
    ],
)
def test_attribute_value_has_its_text(value: object, text: str) -> None:
    assert value_text(value) == text


def test_attribute_without_a_text_is_refused() -> None:
    graph = Graph("net")
    graph.nodes = [Node(OpaqueOp("X", {"key": {1, 2}}), [], TensorType(FLOAT32, ()))]
    with pytest.raises(TypeError, match=r"an attribute of type set has no text: \{1, 2\}"):
        print_graph(graph)


def test_frames_are_left_out_on_request() -> None:
    graph = parse(SMALL_TEXT, OPERATORS, frames=False).main
    assert [node.frames for node in graph.nodes] == [(), (), ()]
    assert [node.scope for node in graph.nodes] == ["Default/network-Net", "Default", ""]


def test_comments_may_stand_anywhere_between_lines() -> None:
    text = "# after: simplify, changed: yes\n" + SMALL_TEXT.replace("  %1", "  # a remark\n  %1")
    assert difference(small_graph(), parse(text, OPERATORS).main) == ""


def test_header_may_be_left_out() -> None:
    empty = "<Tuple[], TupleShape()>"
    module = parse(f"subgraph @f() {{\n  %5 = Pair()\n : () -> ({empty})\nReturn(%5) : ({empty})\n}}", OPERATORS)
    assert module.entry == "f"
    assert [node.op.name for node in module.main.nodes] == ["Pair"]


def test_text_does_not_depend_on_the_hash_seed(root: Path) -> None:
    program = (
        "from mspc.ir.text.printer import print_graph\nfrom tests.ir.graphs import small_graph\n"
        "import sys\nsys.stdout.write(print_graph(small_graph()))"
    )
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = succeed(sys.executable, "-c", program, env=environment, cwd=root)
        assert done.stdout == SMALL_TEXT


def test_difference_names_what_differs() -> None:
    other = small_graph()
    other.nodes[2].inputs[0] = other.nodes[1]
    assert difference(small_graph(), other) == "%2 Total: operand 0: %0 and %1"
    other = small_graph()
    other.nodes[0].instance = "product"
    assert difference(small_graph(), other) == "%0 Product 'matmul': instance is matmul and product"


REFUSED = [
    ("@while_1_condition, @while_1_body}", "@while_1_conditions, @while_1_body}",
     "net.ir:12:94: error: While runs the unknown graph @while_1_conditions\n"
     "  note: did you mean 'while_1_condition' or 'while_1_body'?"),
    ("@if_2_then, @if_2_else}", "@if_2_then, @while_1_body}",
     "net.ir:40:58: error: the graph @while_1_body runs itself without end: @while_1_body -> @while_1_body"),
    ("@if_2_then, @if_2_else}", "@if_2_then, @net}",
     "net.ir:40:58: error: the graph @net runs itself without end: @net -> @while_1_body -> @net"),
    ("@if_2_then, @if_2_else}", "@if_2_then, @if_2_then}",
     "net.ir:59:1: error: no node runs the graph @if_2_else\n  note: a node runs it with `{regions: @if_2_else}`"),
    ("@if_2_then, @if_2_else}", "if_2_then, if_2_else}",
     "net.ir:40:36: error: unknown group {regions: if_2_then, if_2_else}\n"
     "  note: graphs that a node runs stand as `{regions: @name, @name}`"),
    ("%para13_w: <Tensor[Float32], (4)>\n", "",
     "net.ir:49:1: error: the parameter %para13_w of @if_2_then has no line of its own\n"
     "  note: it is above the graph: `%para13_w: <Tensor[...], (...)>`"),
    ("(%para14_y, %para15_w) {", "(%para14_y, %para16_w) {",
     "net.ir:59:1: error: the parameter %para16_w of @if_2_else has no line of its own\n"
     "  note: it is above the graph: `%para16_w: <Tensor[...], (...)>`"),
    ("(%para14_y, %para15_w) {", "(%para14_y, %para3_w) {",
     "net.ir:59:1: error: the parameter %para3_w of @if_2_else has no line of its own\n"
     "  note: it is above the graph: `%para3_w: <Tensor[...], (...)>`"),
    ("(%para14_y, %para15_w) {", "(%para15_w, %para14_y) {",
     "net.ir:59:1: error: @if_2_else takes %para15_w, %para14_y, but the lines above it are of %para14_y, %para15_w"),
    ("(%para14_y, %para15_w) {", "(%para14_y) {",
     "net.ir:59:1: error: @if_2_else takes %para14_y, but the lines above it are of %para14_y, %para15_w"),
    ("%para13_w: <Tensor[Float32], (4)>", "%para13_y: <Tensor[Float32], (4)>",
     "net.ir:49:1: error: two parameters are called y"),
    ("%para13_w: <Tensor[Float32], (4)>", "%para13_w: <Ref[Tensor[Float32]], (4), ref_key=w>  :  has_default",
     "net.ir:50:1: error: the parameter w of @if_2_then is no input\n"
     "  note: its argument stands for it: `<Tensor[...], (...)>`, not a parameter"),
    ("@net() {", "@net(%para1_x, %para2_n, %para3_w) {",
     "net.ir:11:1: error: the parameters of @net are the lines above it\n"
     "  note: the head of the first graph names none: `subgraph @net() {`"),
    ("Return(%para15_w)", "Return(%para3_w)",
     "net.ir:60:10: error: unknown value %para3_w\n"
     "  note: it is in another graph; values from outside are operands of the node that runs a graph"),
    ("Return(%para15_w)", "Return(%0)", "net.ir:60:10: error: unknown value %0"),
    ("@if_2_else(", "@if_2_then(", "net.ir:59:1: error: the graph @if_2_then stands twice"),
    ("#IR entry      : @net", "#IR entry      : @if_2_else",
     "net.ir:59:1: error: @if_2_else, which runs first, does not stand first in the file\n"
     "  note: its parameters are those above all graphs"),
    ("#Total subgraph: 5", "#Total subgraph: 4",
     "net.ir:2:2: error: the header says 'Total subgraph: 4', but the file has 5"),
]  # fmt: skip

MISFITS = [
    ("@while_1_condition, @while_1_body} primitive_attrs: {carried: 2}", "@while_1_body} primitive_attrs: {carried: 2}",
     "While: it has 1 regions; it takes 2: condition and body"),
    ("Return(%0)\n      : (<Tensor[Bool], ()>)", "Return(%para4_turn)\n      : (<Tensor[Int64], ()>)",
     "While: the condition is <Tensor[Int64], ()>, not <Tensor[Bool], ()>"),
    ("Return((%0, %3))\n      : (<Tensor[Int64], ()>, <Tensor[Float32], (4)>)",
     "Return((%0, %1))\n      : (<Tensor[Int64], ()>, <Tensor[Bool], ()>)",
     "While: y is <Tensor[Float32], (4)> ahead of the loop, and <Tensor[Bool], ()> behind a turn"),
    ("Return(%para15_w)\n      : (<Tensor[Float32], (4)>)",
     "Return((%para15_w, %para14_y))\n      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>)",
     "If: one branch returns 1 tensors, the other 2"),
    ("%para7_w: <Tensor[Float32], (4)>", "%para7_w: <Tensor[Float32], (5)>",
     "While: the parameter w of @while_1_condition (condition) is <Tensor[Float32], (5)>, "
     "it is given <Tensor[Float32], (4)>"),
    (" = Mul(%para12_y, %para13_w)", " = Mul(%para12_y, %para13_w) {regions: @more}",
     "Mul: it runs no graphs, and is given @more"),
    (" = Mul(%para12_y, %para13_w)", " = AssignAdd(%para13_w, %para12_y)",
     "If: mutates is (), but its graphs overwrite operands (2,)"),
]  # fmt: skip
MORE = "\nsubgraph @more() {\n  Return()\n}\n"


def read(text: str) -> Graph:
    return parse(text, REGISTRY, "net.ir").main


def test_graphs_of_nodes_read_back_equal() -> None:
    graph = read(LOOP)
    graph.verify()
    check_graph(graph)
    assert [each.name for each in graph.graphs()] == [
        "net", "while_1_condition", "while_1_body", "if_2_then", "if_2_else",
    ]  # fmt: skip
    assert print_graph(graph) == LOOP
    assert difference(graph, read(LOOP)) == ""


def test_the_examples_of_the_documentation_read_back_equal() -> None:
    graph = read(PROGRAM)
    graph.verify()
    check_graph(graph)
    assert print_graph(graph) == PROGRAM
    text = (ROOT / "docs" / "reference" / "ir-regions.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    shown = [line.strip() for language, block in blocks if not language for line in block.split("\n")]
    assert len(shown) > 50
    assert [line for line in shown if line not in [told.strip() for told in PROGRAM.split("\n")]] == []


@pytest.mark.parametrize(("good", "bad", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_message_names_what_is_wrong_at_a_border(good: str, bad: str, message: str) -> None:
    assert LOOP.count(good) >= 1
    error = error_of(read, LOOP.replace(good, bad, 1))
    shown = [line for line in str(error).split("\n") if not line.startswith("    ")]
    assert "\n".join(shown) == message


@pytest.mark.parametrize(("good", "bad", "message"), MISFITS, ids=[message for _, _, message in MISFITS])
def test_what_does_not_fit_a_node_is_refused(good: str, bad: str, message: str) -> None:
    assert LOOP.count(good) == 1
    text = LOOP.replace(good, bad).replace("#Total subgraph: 5\n", "")
    if "it has 1 regions" in message:
        begin, end = text.index("%para4_turn:"), text.index("%para8_turn:")
        text = renumbered(text[:begin] + text[end:])
    graph = read(text + (MORE if "@more" in bad else ""))
    assert error_of(check_graph, graph).message == message


def renumbered(text: str) -> str:
    """A text whose parameters behind the third have the numbers that follow, where four were taken away."""
    return re.sub(r"%para(\d+)_", lambda m: f"%para{int(m[1]) - 4 * (int(m[1]) > 3)}_", text)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_text_with_regions_is_refused_or_sound(seed: int) -> None:
    made = random.Random(seed)
    outcomes: list[bool] = []
    for _ in range(150):
        text = mutated(LOOP, made)
        refused = refusal(text)
        outcomes.append(refused is None)
        if refused is not None and refused.location is not None:
            assert str(refused).startswith(f"net.ir:{refused.location.line}:")
    assert outcomes.count(False) > 50


def refusal(text: str) -> MspcError | None:
    """Why a text is refused; None where it is a graph, which then reads back equal and is sound."""
    try:
        graph = read(text)
        check_graph(graph)
    except MspcError as error:
        return error
    graph.verify()
    assert difference(graph, read(print_graph(graph))) == ""
    return None


def calls(count: int, times: int) -> str:
    """A text in which every graph runs the next one so often."""
    node = "  %{0} = Call() {{regions: @g{1}}}\n      : () -> (<Tuple[], TupleShape()>)\n"
    inside = ["".join(node.format(n, i + 1) for n in range(times if i < count else 0)) for i in range(count + 1)]
    return "\n".join(f"subgraph @g{i}() {{\n{text}  Return()\n}}\n" for i, text in enumerate(inside))


def test_graphs_that_many_paths_lead_to_are_read_and_printed_once() -> None:
    graph = read(calls(60, 2))
    graph.verify()
    check_graph(graph)
    assert [each.name for each in graph.graphs()] == [f"g{i}" for i in range(61)]
    assert difference(graph, read(print_graph(graph))) == ""


def test_graphs_nest_so_deep_and_no_deeper() -> None:
    check_graph(read(calls(DEEPEST_REGIONS, 1)))
    with pytest.raises(MspcError, match=f"error: graphs nest more than {DEEPEST_REGIONS} deep"):
        read(calls(DEEPEST_REGIONS + 1, 1))
    with pytest.raises(MspcError, match=f"error: graphs nest more than {DEEPEST_REGIONS} deep"):
        read(calls(2000, 1))


def test_a_graph_stands_ahead_of_all_that_it_runs() -> None:
    text = calls(2, 1).replace("@g1}\n      : () -> (<Tuple[], TupleShape()>)\n", "@g1}\n"
                               "      : () -> (<Tuple[], TupleShape()>)\n"
                               "  %1 = Call() {regions: @g2}\n      : () -> (<Tuple[], TupleShape()>)\n")  # fmt: skip
    graph = read(text)
    graph.nodes.reverse()
    assert [each.name for each in graph.graphs()] == ["g0", "g1", "g2"]


def test_a_gradient_may_be_of_a_node_of_another_graph() -> None:
    text = LOOP.replace("%1 = TupleGetItem(%0) primitive_attrs: {index: 1}",
                        "%1 = TupleGetItem(%0) primitive_attrs: {index: 1} {gradient_of: @if_2_then:%0.1}")  # fmt: skip
    graph = read(text)
    assert graph.nodes[1].forward is graph.graphs()[3].nodes[0]
    assert print_graph(graph) == text
    assert difference(graph, read(LOOP)).startswith("%1 TupleGetItem: gradient of ('@if_2_then: %0', 1)")
    with pytest.raises(MspcError, match=r"error: unknown graph @if_2_els\n.*\n.*\n  note: did you mean 'if_2_else'"):
        read(text.replace("gradient_of: @if_2_then", "gradient_of: @if_2_els"))
    with pytest.raises(MspcError, match="error: unknown node %7"):
        read(text.replace("@if_2_then:%0.1", "@if_2_then:%7"))


def test_a_difference_in_a_graph_of_a_node_is_told_with_its_name() -> None:
    other = read(LOOP.replace("Greater(%para10_n", "Less(%para10_n"))
    assert difference(read(LOOP), other) == "@while_1_body: %1 Greater: the operators are Greater and Less"


def test_a_graph_that_reads_values_of_another_is_broken() -> None:
    graph = read(LOOP)
    body = graph.graphs()[2]
    body.nodes[3].inputs[0] = graph.nodes[0]
    with pytest.raises(AssertionError, match="before it is defined"):
        graph.verify()
    with pytest.raises(KeyError, match="is not in the graph while_1_body"):
        print_graph(graph)
    body.nodes[3].inputs[0] = body.nodes[2]
    graph.graphs()[3].name = "net"
    with pytest.raises(AssertionError, match="graphs share a name"):
        graph.verify()


def test_parameters_of_one_line_may_also_be_read_one_by_one() -> None:
    row = TensorType(FLOAT32, (4,))
    graph, inner = Graph("net"), Graph("inner")
    for each in (graph, inner):
        each.parameters = [Parameter(f"layers.{i}.w", row) for i in range(3)]
        each.nodes = [Node(OpaqueOp("Kept"), each.parameters, StackType(FLOAT32, (4,)))]
        each.results = [each.parameters[0]]
    graph.nodes.append(Node(OpaqueOp("Calls"), graph.parameters, TupleType((row,))))
    graph.nodes[1].regions = (inner,)
    text = print_graph(graph)
    assert "%0 = Kept(%para1_layers.{0..2}.w)" in text
    assert "%1 = Calls(%para1_layers.0.w, %para2_layers.1.w, %para3_layers.2.w)" in text
    assert difference(graph, read(text)) == ""
    own = "Kept(%para4_layers.0.w, %para5_layers.1.w, %para6_layers.2.w)"
    with pytest.raises(MspcError, match=r"error: unknown value %para1_layers\.\{0\.\.2\}\.w"):
        read(text.replace(own, "Kept(%para1_layers.{0..2}.w)"))
