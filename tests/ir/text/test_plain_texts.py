"""Texts that are read without the grammar are read as by it, mistakes are its own, and a compile does without it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.text.fragments import parse_text, read_attributes, read_layouts, read_type, read_value
from mspc.ir.text.own_lines import alone_value, plain_attributes, plain_layout, plain_tensor_type, plain_tuple_type
from mspc.ir.text.source_text import Malformed

VALUES = ("0", "-5", "007", "(0)", "()", "(1, -2)", "true", "false", "Float16", "Bool", "-0", "1.5", "1.0e-05", "1.",
          "12345678901234567890", "1e-08", '"gelu"', '""', '"a b_c-1.5"', '("Mul(x0, x1)")', "None",
          "((1, 2), (3), ())", "(1, 2.5, \"a\", x)", "none", "constant",
          '("", "Cast(x0, dst_type=Float32)", ", ")', '"\\n"', '"a\\"b"', '("\\n")', '"\\q"')  # fmt: skip
OTHERS = ("(1,2)", "inf", "nan", "-inf", "1" * 41, "0:8:2", "I64(3)", "1-2", "(" * 9 + ")" * 9, "a.b",
          "Tensor(shape=[], dtype=Int32, value=1)", "Layout(2) [0]", "<Tensor[Int8], (2)>", "[1, 2]", "{}", "@name",
          '("a","b")', '`"a"', "a[1]")  # fmt: skip
TYPES = ("<Tensor[Float32], ()>", "<Tensor[Int8], (2, 0)>", "<Ref[Tensor[Int8]], (2, 3)>",
         "<Tuple[Tensor[Int8]], TupleShape((2))>", "<Tuple[Tensor[Int8]*2,Tensor[Bool]], TupleShape((2), (), (3, 4))>",
         "<Tuple[Tensor[Int8], Tensor[Bool]], TupleShape((2), ())>")  # fmt: skip
LAYOUTS = ("(2, 4) [0, -]", "(8) []", "(2, 2, 2) [0.1, 2]", "(2, 4) [-, 1] sum[0]", "(2, 2) [-] max[0, 1]")


@pytest.mark.parametrize("text", VALUES)
def test_plain_values_are_those_of_the_grammar(text: str) -> None:
    found, expected = alone_value(text), parse_text(text, "value")
    assert found == (expected,)
    assert repr(found) == repr((expected,))


@pytest.mark.parametrize("text", OTHERS)
def test_all_else_is_left_to_the_grammar(text: str) -> None:
    assert alone_value(text) is None
    assert plain_attributes(f"{{a: {text}}}") is None


@pytest.mark.parametrize("text", TYPES)
def test_plain_types_are_those_of_the_grammar(text: str) -> None:
    assert plain_tensor_type(text) or plain_tuple_type(text)
    found, expected = read_type(text), parse_text(text, "type")
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("text", LAYOUTS)
def test_plain_layouts_are_those_of_the_grammar(text: str) -> None:
    assert plain_layout(text)
    assert read_layouts(f"{text}; none") == (*parse_text(text, "layouts"), None)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_type, "<Tensor[Int9], (2)>", "unknown element type Int9"),
        (read_type, "<Tensor[Int8], (99999999999, 99999999999)>", "has more elements than any memory holds"),
        (read_type, "<Tuple[Tensor[Int8]*2], TupleShape((2))>", "the tuple has 2 elements but 1 shapes"),
        (read_type, "<Tuple[Tensor[Int8]*0], TupleShape((2))>", "the tuple has 0 elements but 1 shapes"),
        (read_layouts, "(2, 4) [0, 2]", "the mesh (2, 4) has no axis 2"),
        (read_layouts, "(2, 4) [0] sum[0]", "a mesh axis is used twice"),
        (read_layouts, "(2, 0) [0]", "has an axis of size 0"),
        (read_attributes, "{a: 1, a: 2}", "the attribute 'a' stands twice"),
        (read_value, "1, 2", "unexpected ', 2'"),
    ],
)
def test_mistakes_are_those_of_the_grammar(read: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(Malformed, match=re.escape(message)):
        read(text)


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
def test_a_compile_needs_no_grammar(root: Path, tmp_path: Path, for_gpu: bool) -> None:
    script = root / "samples" / "quickstart" / "net.py"
    if for_gpu:
        script = tmp_path / "step.py"
        script.write_text(STEP)
    compile_it = (
        "import sys; from mspc.commands.compile import CompileOptions, compile_target; from pathlib import Path;"
        "from mspc.ir.text.fragments import grammar;"
        f"compile_target({str(script)!r}, CompileOptions(ranks={1 if for_gpu else 8},"
        f" out=Path({str(tmp_path / 'out')!r})));"
        "print(grammar.cache_info().currsize, sorted({'networkx', 'rich', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", compile_it], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
