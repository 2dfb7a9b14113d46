"""Operands that operators refuse and the generated tests do not see."""

from __future__ import annotations

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.control.print import TensorDump
from mspc.ops.op import Op
from mspc.ops.tensor.creation import LinSpaceBetween
from mspc.ops.tensor.selection import RepeatInterleaveTensor


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (
            RepeatInterleaveTensor((1, 2), 0),
            [TensorType(FLOAT32, (3, 2))],
            "RepeatInterleaveTensor: repeats (1, 2) are not 3 numbers from 0 on, as dimension 0 of input 0 needs",
        ),
        (
            RepeatInterleaveTensor((1, -2)),
            [TensorType(FLOAT32, (2,))],
            "RepeatInterleaveTensor: repeats (1, -2) are not 2 numbers from 0 on, as input 0 needs",
        ),
        (LinSpaceBetween(0), [TensorType(FLOAT32, ())] * 2, "LinSpace: num is 0, not at least 1"),
        (
            LinSpaceBetween(4),
            [TensorType(FLOAT32, ()), TensorType(FLOAT32, (2,))],
            "LinSpace: input 1 is <Tensor[Float32], (2)>, not a floating-point scalar",
        ),
    ],
)
def test_operands_that_do_not_fit(op: Op, types: list[TensorType], message: str) -> None:
    with pytest.raises(MspcError) as caught:
        op.infer(*types)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("mode", "arguments", "message"),
    [
        ("out", ("x",), "TensorDump takes the name of a file and a tensor"),
        ("out", (1, 2), "TensorDump takes the name of a file and a tensor"),
        ("both", ("x", 1), "TensorDump: mode 'both' is not one of 'out', 'in'"),
    ],
)
def test_dumps_that_cannot_be(mode: str, arguments: tuple, message: str) -> None:
    with pytest.raises(MspcError) as caught:
        TensorDump(mode).call(*arguments)
    assert caught.value.message == message
