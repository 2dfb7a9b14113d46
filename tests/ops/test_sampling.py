"""Classes drawn at random, and lists of repetitions: what the generated tests do not see."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, INT32, TensorType
from mspc.ops.control.dump import TensorDump
from mspc.ops.loss.sampling import UniformCandidateSampler
from mspc.ops.op import Op
from mspc.ops.tensor.creation import LinSpaceBetween
from mspc.ops.tensor.mint_selection import RepeatInterleaveTensor


def test_candidates_are_different_and_miss_the_true_classes() -> None:
    x = np.array([[1, 2], [5, 1]], np.int32)
    backend = SimpleNamespace(xp=np, comm=None, step=1)
    op = UniformCandidateSampler(2, 6, True, 9, 3, True)
    drawn, expected, each = op.run(backend, x)  # type: ignore[arg-type]  # an ArrayBackend
    assert sorted(drawn.tolist()) == [0, 3, 4, 6, 7, 8]
    assert (drawn.dtype, expected.shape, each.shape) == (np.int32, (2, 2), (6,))
    seen = np.zeros(9)
    for backend.step in range(600):
        drawn, expected, each = UniformCandidateSampler(2, 3, True, 9, 3).run(backend, x)  # type: ignore[arg-type]
        assert len(set(drawn.tolist())) == 3
        seen[drawn] += 1
    np.testing.assert_allclose(seen / 600, 3 / 9, atol=0.07)
    np.testing.assert_allclose(each, 3 / 9)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (UniformCandidateSampler(3, 2, True, 9), "input 0 has shape (2, 2), not (batch, num_true 3)"),
        (UniformCandidateSampler(2, 10, True, 9), "there are no 10 different classes below 9"),
        (UniformCandidateSampler(2, 0, True, 9), "num_sampled 0 and range_max 9 are at least 1"),
    ],
)
def test_candidates_that_cannot_be(op: UniformCandidateSampler, message: str) -> None:
    with pytest.raises(MspcError) as caught:
        op.infer(TensorType(INT32, (2, 2)))
    assert caught.value.message == f"UniformCandidateSampler: {message}"


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
