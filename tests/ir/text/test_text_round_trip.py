"""The printer's text is read back equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from mspc.ir.compare import difference
from mspc.ir.graph import Constant, Graph, Node, Parameter
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.fragments import read_tensor
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import constant_text, print_graph, value_text
from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, DType, TensorType, dtype_of
from mspc.ops.op import REGISTRY, load_operators
from tests.ir.graphs import OPERATORS, SMALL_TEXT, graphs, programs, small_graph
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
    load_operators()
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
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=root)
        assert done.stdout == SMALL_TEXT


def test_difference_names_what_differs() -> None:
    other = small_graph()
    other.nodes[2].inputs[0] = other.nodes[1]
    assert difference(small_graph(), other) == "%2 Total: operand 0: %0 and %1"
    other = small_graph()
    other.nodes[0].instance = "product"
    assert difference(small_graph(), other) == "%0 Product 'matmul': instance is matmul and product"
