"""Values that are read without the grammar are those that the grammar reads, and a compile does without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mspc.ir.text.fragments import plain_value, read_value

PLAIN = ("0", "-5", "007", "(0)", "()", "(1, -2)", "true", "false", "Float16", "Bool", "-0", "1.5", "1.0e-05",
         "1e-08", '"gelu"', '""', '"a b_c-1.5"', '("Mul(x0, x1)")',
         '("", "Cast(x0, dst_type=Float32)", ", ")')  # fmt: skip
OTHERS = ("None", "(1,2)", "(1, (2, 3))", "inf", "nan", "x", '"\\n"', "12345678901234567890", "0:8:2", "I64(3)",
          '("\\n")', '("a", 1)', '("a","b")')  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_plain_values_are_those_of_the_grammar(text: str) -> None:
    value = plain_value(text)
    assert (value, type(value)) == (read_value(text), type(read_value(text)))
    assert repr(value) == repr(read_value(text))


@pytest.mark.parametrize("text", OTHERS)
def test_all_else_is_left_to_the_grammar(text: str) -> None:
    assert plain_value(text) is None


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
