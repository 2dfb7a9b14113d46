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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a",), "Print needs a tensor among what it prints"),
        (((1,),), "Print takes tensors, texts and numbers, not (1,)"),
    ],
)
def test_what_cannot_be_printed_is_named(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError) as refused:
        ops.Print()(*arguments)
    assert message in str(refused.value)
