"""Printing while a network runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops


class Net(nn.Cell):
    def __init__(self, *before: Any) -> None:
        super().__init__()
        self.print = ops.Print()
        self.before = before

    def construct(self, x: Any) -> Any:
        y = x * 2
        self.print(*self.before, y, "end")
        return y + 1


def test_texts_and_tensors_are_printed_at_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("a {}", 3)
    for number in (1.0, 2.0):
        assert net(Tensor(np.full((2,), number, np.float32))).asnumpy().tolist() == [2 * number + 1] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "a {}", "3", "Tensor(shape=[2], dtype=Float32, value=[2., 2.])", "end",
        "a {}", "3", "Tensor(shape=[2], dtype=Float32, value=[4., 4.])", "end",
    ]  # fmt: skip


def test_a_gradient_passes(capsys: pytest.CaptureFixture[str]) -> None:
    gradient = ms.grad(lambda x: ops.Print()("x", x) * 3.0)(Tensor([1.0, 2.0], ms.float32))
    assert gradient.asnumpy().tolist() == [3.0, 3.0]
    assert capsys.readouterr().out.count("Tensor(") == 1


class Values(nn.Cell):
    """Prints values of its own and, in a tuple and a dict, what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.print = ops.Print()

    def construct(self, x: Any) -> Any:
        y = x + 1
        self.print("text", x.shape, None, True, [1, 2.5], {"a": "b"}, "{}", {}, ())
        self.print((1, y), {"sum": (x, [y])})
        self.print()
        return y


SHOWN = "Tensor(shape=[1], dtype=Float32, value=[{}])"


def test_values_that_are_no_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    net, x = Values(), Tensor([1.0], ms.float32)
    for _ in range(2):
        assert net(x).asnumpy().tolist() == [2.0]
        assert capsys.readouterr().out.splitlines() == [
            "text", "(1,)", "None", "True", "[1, 2.5]", "{'a': 'b'}", "{}", "{}", "()",
            f"(1, {SHOWN.format('2.')})", f"{{'sum': ({SHOWN.format('1.')}, [{SHOWN.format('2.')}])}}",
        ]  # fmt: skip


def test_what_has_no_tensor_gives_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert int(ops.Print()("a", (1,)).asnumpy()) == 0
    assert capsys.readouterr().out == "a\n(1,)\n"
