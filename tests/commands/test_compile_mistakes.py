"""Mistakes in a script or a network: clear messages at the user's line, status 2, nothing written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HANG
from tests.explained import message_of
from tests.serving import SERVED

NETWORK = """\
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((12, 16), np.float32), "w")
        self.first = ops.MatMul()<MATMUL>
        self.act = ops.ReLU()<RELU>

    def construct(self, x):
        y = self.first(x, self.w)
        <LINE>
        return self.act(y)


net = Net()
net(Tensor(np.ones((8, <COLUMNS>)), ms.float32))
"""
DEFAULTS = {"MATMUL": "", "RELU": "", "LINE": "y = y + 1.0", "COLUMNS": "12"}
AT_MATMUL = "        y = self.first(x, self.w)\n" + " " * 16 + "^" * 21 + "\n"
AT_RELU = "        return self.act(y)\n" + " " * 19 + "^" * 11 + "\n"

MISTAKES: dict[str, tuple[dict[str, str], str]] = {
    "a strategy does not divide a dimension": (
        {"MATMUL": ".shard(((1, 8), (8, 1)))"},
        "net.py:16:13: error: MatMul 'first': dimension 1 of input 0 is 12, which 8 does not divide\n"
        f"    {AT_MATMUL}"
        "  note: shard it into 1, 2, 3, 4, 6 or 12 slices\n",
    ),
    "a strategy has an entry too many": (
        {"MATMUL": ".shard(((2, 4), (4, 1), (1, 1)))"},
        "net.py:16:13: error: MatMul 'first': the strategy has 3 entries, but the operator has 2 "
        "tensor inputs\n"
        f"    {AT_MATMUL}"
        "  note: give one tuple per input, for example ((1, 1), (1, 1))\n",
    ),
    "an entry of a strategy is too short": (
        {"RELU": ".shard(((8,),))"},
        "net.py:18:16: error: ReLU 'act': the strategy of input 0 is (8,), which has 1 numbers "
        "for 2 dimensions, "
        "whose shape is (8, 16)\n"
        f"    {AT_RELU}"
        "  note: give one number per dimension, for example (1, 1)\n",
    ),
    "a strategy needs more ranks than there are": (
        {"MATMUL": ".shard(((8, 4), (4, 1)))"},
        "net.py:16:13: error: MatMul 'first': the strategy ((8, 4), (4, 1)) needs 32 ranks, but there are 8\n"
        f"    {AT_MATMUL}"
        "  note: the product of its numbers must divide 8\n"
        "  note: all strategies of the network divide 32 ranks, and multiples of 32\n",
    ),
    "a strategy does not divide the ranks": (
        {"MATMUL": ".shard(((1, 3), (3, 1)))"},
        "net.py:16:13: error: MatMul 'first': the strategy ((1, 3), (3, 1)) uses 3 ranks, which "
        "does not divide 8\n"
        f"    {AT_MATMUL}"
        "  note: the product of its numbers must divide 8\n"
        "  note: all strategies of the network divide 3 ranks, and multiples of 3\n",
    ),
    "a strategy disagrees on the inner dimension": (
        {"MATMUL": ".shard(((2, 4), (2, 1)))"},
        "net.py:16:13: error: MatMul 'first': dimension 0 of input 1 is sharded into 2 slices, "
        "but dimension 1 of input 0 into 4, and both are the same dimension of the operator\n"
        f"    {AT_MATMUL}"
        "  note: shard both into 4, or both into 2\n",
    ),
    "shapes do not fit": (
        {"COLUMNS": "13"},
        "net.py:16:13: error: MatMul 'first': dimension 0 of input 1 is 12, but dimension 1 of "
        "input 0 says 13\n"
        f"    {AT_MATMUL}"
        "  note: the shapes are (8, 13), (12, 16)\n",
    ),
    "a statement is not supported": (
        {"LINE": "with open('x') as f: pass"},
        "net.py:17:14: error: open() is not supported inside a compiled function\n"
        "            with open('x') as f: pass\n"
        "                 ^^^^^^^^^\n",
    ),
    "a name is not defined": (
        {"LINE": "y = y + unknown"},
        "net.py:17:17: error: name 'unknown' is not defined\n"
        "            y = y + unknown\n"
        "                    ^^^^^^^\n",
    ),
    "two independent mistakes": (
        {"MATMUL": ".shard(((1, 8), (8, 1)))", "RELU": ".shard(((3, 1),))"},
        "net.py:16:13: error: MatMul 'first': dimension 1 of input 0 is 12, which 8 does not divide\n"
        f"    {AT_MATMUL}"
        "  note: shard it into 1, 2, 3, 4, 6 or 12 slices\n"
        "net.py:18:16: error: ReLU 'act': dimension 0 of input 0 is 8, which 3 does not divide\n"
        f"    {AT_RELU}"
        "  note: shard it into 1, 2, 4 or 8 slices\n"
        "2 errors\n",
    ),
}


def refused(folder: Path, *arguments: str) -> str:
    """The message of a compile that must fail, write nothing and show no traceback."""
    before = sorted(folder.iterdir())
    variables = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_")}
    command = [*SERVED, "compile", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, check=False, timeout=HANG)
    assert (done.returncode, done.stdout) == (2, "")
    assert sorted(folder.iterdir()) == before
    return message_of(done.stderr)


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_network_is_refused(tmp_path: Path, name: str) -> None:
    changes, message = MISTAKES[name]
    text = NETWORK
    for key, value in (DEFAULTS | changes).items():
        text = text.replace(f"<{key}>", value)
    (tmp_path / "net.py").write_text(text)
    assert refused(tmp_path, "net.py", "--save-graphs") == message


def test_error_of_the_script_shows_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def read():\n    return {}['key']\n\nread()\n")
    assert refused(tmp_path, "net.py") == (
        "Traceback (most recent call last):\n"
        '  File "net.py", line 4, in <module>\n'
        "    read()\n"
        '  File "net.py", line 2, in read\n'
        "    return {}['key']\n"
        "           ~~^^^^^^^\n"
        "KeyError: 'key'\n"
    )


NAMED = """\
from mindspore import nn


class Net(nn.Cell):
    def __init__(self, width, bias=False):
        super().__init__()
        self.factor = 2.0 * width

    def construct(self, x):
        return x * self.factor
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("net.py:Net(3)",),
            "error: the network Net needs its inputs\n"
            "  note: give one --input per argument: --input 'float32[16,32]'\n",
        ),
        (
            ("net.py:Nett(3)", "--input", "float32[4]"),
            "error: net.py defines no 'Nett'\n  note: it defines Net\n",
        ),
        (
            ("net.py:Net()", "--input", "float32[4]"),
            "error: cannot build Net: missing a required argument: 'width'\n",
        ),
        (
            ("net.py:Net(open('x'))", "--input", "float32[4]"),
            "error: cannot read \"Net(open('x'))\" as a network\n"
            "  note: write a class and literal arguments: 'net.py:Net(32, 16, bias=True)'\n",
        ),
        (
            ("net.py:Net(3)", "--input", "float3[4]"),
            "error: 'float3[4]': unknown element type 'float3'\n"
            "  note: did you mean 'float32', 'float64' or 'float16'?\n"
            "  note: known are bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
            "float8e4m3, float8e5m2, float16, bfloat16, "
            "float32, float64, complex64, complex128\n",
        ),
        (
            ("net.py:Net(3)", "--input", "4x4"),
            "error: cannot read '4x4' as an input\n"
            "  note: write an element type and a shape: float32[16,32]\n",
        ),
        (
            ("net.py:Net(3)", "--input", "float32[4]", "--input", "float32[4]"),
            "error: construct() takes 1 argument (x), not 2\n",
        ),
        (
            ("net.py", "--input", "float32[4]"),
            "error: --input is for a named network, and net.py is a script\n"
            "  note: write 'net.py:Net()' to name one\n",
        ),
        (
            ("net.py:Net(3)", "--input", "float32[4]", "--rank", "1"),
            "error: there is no rank 1; ranks are 0 to 0\n"
            "  note: --ranks says how many ranks there are; --rank names those that are written\n",
        ),
        (("other.py:Net(3)", "--input", "float32[4]"), "error: there is no script 'other.py'\n"),
    ],
)
def test_named_network_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "net.py").write_text(NAMED)
    assert refused(tmp_path, *arguments) == message


LARGE = """\
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer


class Net(nn.Cell):
    def __init__(self, *shape):
        super().__init__()
        self.w = Parameter(initializer("ones", shape), "w")

    def construct(self, x):
        return ops.expand_dims(x, 1) * ops.expand_dims(x, 0) + ops.reduce_sum(self.w)
"""


@pytest.mark.parametrize(
    ("shape", "size", "begin"),
    [
        ("1", 10**30, "error: 'float32[1000000"),
        ("1", int("9" * 4000), "error: 'float32[9999999"),
        ("1", 10**11, "net.py:11:16: error: Mul: <Tensor[Float32], (100000000000, 100000000000)> "),
        ("10**9, 10**9, 10", 1, "error: parameter 'w': <Tensor[Float32], (1000000000, 1000000000, 10)> "),
    ],
    ids=["a size", "digits", "an operator", "a parameter"],
)
def test_what_no_memory_holds_is_not_written(tmp_path: Path, shape: str, size: int, begin: str) -> None:
    (tmp_path / "net.py").write_text(LARGE.replace("*shape):", "):").replace("shape)", f"({shape},))"))
    said = refused(tmp_path, "net.py:Net()", "--input", f"float32[{size}]")
    assert said.startswith(begin)
    assert "has more elements than any memory holds\n" in said
