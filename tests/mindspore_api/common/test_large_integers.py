"""Integers that no element type holds are named, in words of mspc's own; those of 64 bits keep their value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError

X, WHERE = Tensor(np.array([1, 2, 3], np.int32)), Tensor(np.array([True, False, True]))
def test_numbers_of_64_bits_without_a_sign() -> None:
    assert (Tensor([2**63]).dtype, Tensor([1, 2**64 - 1]).asnumpy().tolist()) == (ms.uint64, [1, 2**64 - 1])
    assert Tensor([np.uint64(5), 2**63 - 1]).dtype == ms.int64
    assert Tensor([1.0, 2**63]).dtype == ms.float32
    with pytest.raises(TypeError, match="a tensor is made of numbers of one element type, not of"):
        Tensor([-1, 2**63])


def test_element_types_that_mindspore_refuses() -> None:
    numbers = Tensor(np.array([1.5 + 2j], np.complex64))
    for call in (ops.floor, ops.ceil, ops.trunc, ops.round):
        with pytest.raises(TypeError, match="the operator takes no complex numbers"):
            call(numbers)
    with pytest.raises(TypeError, match="L2Loss: input 0 is Int32, not a floating-point tensor"):
        ops.L2Loss()(X)
    for call in (ops.cumsum, ops.CumProd()):
        with pytest.raises(TypeError, match="input 0 is Bool, not a number"):
            call(WHERE, 0)


def test_the_absolute_value_of_complex_numbers_is_real() -> None:
    numbers = Tensor(np.array([3 - 4j, 0], np.complex64))

    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.abs(x)

    for found in (ops.abs(numbers), ops.Abs()(numbers), Net()(numbers)):
        assert (found.dtype, found.asnumpy().tolist()) == (ms.float32, [5.0, 0.0])
    with pytest.raises(MspcError, match="Abs has no gradient of complex numbers; ComplexAbs has one"):
        ms.grad(lambda x: ops.abs(x).sum())(numbers)


DIGITS = 10**5000
"""Python refuses to print it."""
ROWS = Tensor(np.ones((4, 4), np.float32))
LONG = "an integer of more than 256 bits"


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ops.arange(DIGITS), LONG),
    (lambda: ops.split(ROWS, DIGITS), LONG),
    (lambda: ops.chunk(ROWS, DIGITS), LONG),
    (lambda: ROWS[DIGITS], f"index {LONG} of a tensor"),
    (lambda: ROWS * DIGITS, f"{LONG} is no number of Float32"),
    (lambda: ROWS.reshape(DIGITS), LONG),
    (lambda: Tensor(DIGITS), LONG),
    (lambda: nn.Dense(DIGITS, 3), LONG),
    (lambda: nn.GroupNorm(DIGITS, 3), f"GroupNorm: these arguments do not fit: num_groups={LONG}"),
    (lambda: ms.set_seed(DIGITS), LONG),
    (lambda: nn.MicroBatchInterleaved(nn.ReLU(), DIGITS), f"interleave_num {LONG} must be at most 65536"),
    (lambda: nn.PipelineCell(nn.ReLU(), -DIGITS), f"micro_size {LONG} must be at least 1"),
    (lambda: nn.LSTM(2, 2, DIGITS), f"LSTM: num_layers {LONG} must be at most 65536"),
    (lambda: ops.transpose(ROWS, (DIGITS, 0)), r"perm\[0\] is an integer that does not fit 64 bits"),
])  # fmt: skip
def test_integers_that_python_does_not_print(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        call()


@pytest.mark.parametrize(("function", "message"), [
    (lambda x: ops.arange(0, DIGITS, 1) + x[0], f"{LONG}"),
    (lambda x: ops.split(x, DIGITS)[0], LONG),
    (lambda x: ops.full((2, 2), DIGITS), f"Fill: {LONG} is beyond the 64 bits of an integer"),
    (lambda x: x[DIGITS], f"index {LONG} is out of range for dimension 0"),
    (lambda x: ops.stack([x, x], DIGITS), f"Stack: {LONG} is beyond the 64 bits of an integer"),
    (lambda x: x.sum(axis=DIGITS), LONG),
    (lambda x: x * sum(range(DIGITS)), r"sum\(\) has more than 1048576 iterations at compile time"),
    (lambda x: x * sorted(range(DIGITS))[0], r"sorted\(\) has more than 1048576 iterations at compile time"),
    (lambda x: ops.tril(x, DIGITS), "Tril: diagonal is an integer that does not fit 64 bits"),
])  # fmt: skip
def test_networks_with_integers_that_python_does_not_print(function: Any, message: str) -> None:
    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return function(x)

    with pytest.raises(MspcError, match=message) as raised:
        Net()(ROWS)
    assert "test_large_integers.py" in str(raised.value)


def test_a_loop_of_more_iterations_than_python_counts() -> None:
    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            for _ in range(DIGITS):
                x = x + 1
            return x

    with pytest.raises(MspcError, match="the loop has more than 1048576 iterations at compile time"):
        Net()(ROWS)
