"""Small texts: values, attributes, types and layouts; mistakes in them; and the modules that a compile loads."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.layout import Layout
from mspc.ir.opaque import GraphReference, Symbol
from mspc.ir.text.fragments import read_attributes, read_layouts, read_type, read_value
from mspc.ir.text.source_text import Malformed
from mspc.ir.types import BOOL, FLOAT16, FLOAT32, INT8, StackType, TensorType, TupleType

VALUES = {
    "0": 0, "-5": -5, "007": 7, "-0": 0, "12345678901234567890": 12345678901234567890,
    "1.5": 1.5, "1.0e-05": 1e-5, "1.": 1.0, "1e-08": 1e-8, "inf": float("inf"), "-inf": -float("inf"),
    "true": True, "false": False, "None": None, "Float16": FLOAT16, "Bool": BOOL,
    "none": Symbol("none"), "constant": Symbol("constant"), "a.b": Symbol("a.b"), "a[1]": Symbol("a[1]"),
    "1-2": Symbol("1-2"), "{}": Symbol("{}"), "I64(3)": 3, "BF16(0.5)": 0.5, "Bool(1)": True,
    '"gelu"': "gelu", '""': "", '"a b_c-1.5"': "a b_c-1.5", '"\\n"': "\n", '"a\\"b"': 'a"b', '"\\q"': "\\q",
    '`"a"': Symbol("a"), "@name": GraphReference("name"), "$(@f:%1)": GraphReference("f", "%1"),
    "()": (), "(0)": (0,), "(1, -2)": (1, -2), "(1,2)": (1, 2), "[1, 2]": (1, 2), "( 1 , 2 )": (1, 2),
    "((1, 2), (3), ())": ((1, 2), (3,), ()), '(1, 2.5, "a", x)': (1, 2.5, "a", Symbol("x")),
    '("", "Cast(x0, dst_type=Float32)", ", ")': ("", "Cast(x0, dst_type=Float32)", ", "),
    "0:8:2": (0, 2, 4, 6), "<Tensor[Int8], (2)>": TensorType(INT8, (2,)), "Layout(2) [0]": Layout.of((2,), [(0,)]),
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_values(text: str) -> None:
    found, expected = read_value(text), VALUES[text]
    assert found == expected
    assert repr(found) == repr(expected)


def test_attributes() -> None:
    assert read_attributes("{}") == {}
    found = read_attributes('{a: (1, 2), b_2: "x, y: {z}", "a b":Float32, \'c\': true}')
    assert list(found.items()) == [("a", (1, 2)), ("b_2", "x, y: {z}"), ("a b", FLOAT32), ("c", True)]


BYTES = TensorType(INT8, (2,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<Tensor[Float32], ()>", TensorType(FLOAT32, ())),
        ("<Tensor[Int8], (2, 0)>", TensorType(INT8, (2, 0))),
        ("<Ref[Tensor[Int8]], (2, 3)>", TensorType(INT8, (2, 3))),
        ("<Tensor[Int8], (2), its=other>", BYTES),
        ("<Stack[Stack[Int8]], (2)>", StackType(INT8, (2,), 2)),
        ("<Tuple[], TupleShape()>", TupleType(())),
        ("<Tuple[Tensor[Int8]], TupleShape((2))>", TupleType((BYTES,))),
        ("<Tuple[Tensor[Int8]*2,Tensor[Bool]], TupleShape((2), (), (3, 4))>",
         TupleType((BYTES, TensorType(INT8, ()), TensorType(BOOL, (3, 4))))),
        ("<Tuple[Tensor[Int8], Stack[Bool] * 2], TupleShape((2), (), (1))>",
         TupleType((BYTES, StackType(BOOL, ()), StackType(BOOL, (1,))))),
    ],
)  # fmt: skip
def test_types(text: str, expected: object) -> None:
    found = read_type(text)
    assert (found, type(found)) == (expected, type(expected))


def test_layouts() -> None:
    found = read_layouts("(2, 4) [0, -]; none; (8) []; (2, 2, 2) [0.1, 2]; ((2, 4) [-, 1] sum[0]; none); ()")
    assert found == (
        Layout.of((2, 4), [(0,), ()]), None, Layout.of((8,), []), Layout.of((2, 2, 2), [(0, 1), (2,)]),
        (Layout.of((2, 4), [(), (1,)], (0,)), None), (),
    )  # fmt: skip
    assert read_layouts("(2, 2) [-] max[0, 1]") == (Layout.of((2, 2), [()], (0, 1), "max"),)
    assert read_layouts(" ") == ()


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_type, "<Tensor[Int9], (2)>", "unknown element type Int9"),
        (read_type, "<Tensor[Int8], (99999999999, 99999999999)>", "has more elements than any memory holds"),
        (read_type, "<Tensor[Int8], (-1)>", "the shape (-1,) has a negative dimension"),
        (read_type, "<Tensor[Int8], (2,)>", "unexpected ')>'"),
        (read_type, "<Tensor[Int8]], (2)>", "unexpected '], (2)>'"),
        (read_type, "<Ref[Tensor[Int8], (2)>", "unexpected ', (2)>'"),
        (read_type, "<Stack[Stack[Int8], (2)>", "unexpected ', (2)>'"),
        (read_type, "<Tuple[Tensor[Int8]*2], TupleShape((2))>", "the tuple has 2 elements but 1 shapes"),
        (read_type, "<Tuple[Tensor[Int8]*0], TupleShape((2))>", "the tuple has 0 elements but 1 shapes"),
        (read_layouts, "(2, 4) [0, 2]", "the mesh (2, 4) has no axis 2"),
        (read_layouts, "(2, 4) [0] sum[0]", "a mesh axis is used twice"),
        (read_layouts, "(2, 0) [0]", "has an axis of size 0"),
        (read_layouts, "(2.1) [0]", "a list of numbers separated by commas is needed here"),
        (read_layouts, "(2, 2) [0] median[1]", "median is no reduction"),
        (read_layouts, "(2) [0];", "the text ends too early"),
        (read_attributes, "{a: 1, a: 2}", "the attribute 'a' stands twice"),
        (read_attributes, "", "the text ends too early"),
        (read_attributes, "{", "the text ends too early"),
        (read_attributes, "{a: 1", "the text ends too early"),
        (read_attributes, "{a: 1}}", "unexpected '}'"),
        (read_attributes, "{a: 1, }", "unexpected '}'"),
        (read_attributes, "a: 1}", "unexpected 'a: 1}'"),
        (read_value, "1, 2", "unexpected ', 2'"),
        (read_value, "1" * 41, f"unexpected '{'1' * 24}'"),
        (read_value, '("a","b"', "the text ends too early"),
        (read_value, "I64(x)", "I64(x) is no number"),
    ],
)
def test_mistakes(read: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(Malformed, match=re.escape(message)):
        read(text)


def test_a_mistake_names_the_tokens_that_could_follow() -> None:
    with pytest.raises(Malformed) as caught:
        read_layouts("(2, 4) [0, x]")
    assert (caught.value.offset, caught.value.expected) == (11, ("'-'", "axes"))


STEP = """
import mspc as ms
from mspc import nn
ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU")
net = nn.SequentialCell(nn.Dense(8, 8), nn.GELU(), nn.Dense(8, 8), nn.LayerNorm((8,)), nn.Dense(8, 4))
optimizer = ms.mint.optim.AdamW(net.trainable_params(), 1e-3)
gradients = ms.value_and_grad(nn.WithLossCell(net, nn.MSELoss()), None, optimizer.parameters)

@ms.jit
def step(x, y):
    loss, found = gradients(x, y)
    optimizer(found)
    return loss

step(ms.ops.zeros((16, 8)), ms.ops.zeros((16, 4)))
"""


@pytest.mark.parametrize("for_gpu", [False, True])
def test_a_compile_loads_neither_tables_nor_mpi(root: Path, tmp_path: Path, for_gpu: bool) -> None:
    script = root / "samples" / "quickstart" / "net.py"
    if for_gpu:
        script = tmp_path / "step.py"
        script.write_text(STEP)
    compile_it = (
        "import sys; from mspc.commands.compile import CompileOptions, compile_target; from pathlib import Path;"
        f"compile_target({str(script)!r}, CompileOptions(ranks={1 if for_gpu else 8},"
        f" out=Path({str(tmp_path / 'out')!r})));"
        "print(sorted({'rich', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", compile_it], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
