"""Kernels along rows read and write matrices with gaps between their rows, and touch nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType
from mspc.ops.fused.elementwise import FusedElementwise
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator

NUMPY: Any = SimpleNamespace(xp=np)  # all that the operators ask for
ROWS = 5
SOFTMAX = (
    "Cast(x0, dst_type=Float32)", "Add(t0, x1)", "LogSoftmax(t1, axis=-1)", "Exp(t2)", "Mul(t3, x2)",
    "Cast(t4, dst_type=KIND)",
)  # fmt: skip
GAPS = ((8, 8, False), (8, 8, True), (8, 24, False), (8, 0, False), (0, 8, False))
"""Elements behind a row of what is read and of what is made, beyond the next multiple of eight; and whether it is made
in the operand's place."""


def matrix(kind: DType, columns: int, gap: int, seed: int) -> Any:
    """A matrix in memory that holds NaN between its rows."""
    pitch = -(-columns // 8) * 8 + gap if gap else columns
    memory = np.full(ROWS * pitch + 64, np.nan).astype(kind.numpy)
    begin = -memory.ctypes.data % 64 // memory.itemsize
    whole = memory[begin : begin + ROWS * pitch].reshape(ROWS, pitch)
    whole[:, :columns] = np.random.default_rng(seed).standard_normal((ROWS, columns)).astype(kind.numpy)
    return whole[:, :columns]


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize("kind", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
def test_kernels_equal_those_of_contiguous_rows(kind: DType, tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    device.takes_gaps = True
    op = FusedElementwise(tuple(line.replace("KIND", kind.name) for line in SOFTMAX), (5,))
    launches: list[tuple[Any, Any, Any]] = []
    for columns in (9, 130, 1001, 5003):
        for gap_in, gap_out, in_place in GAPS:
            x, out = matrix(kind, columns, gap_in, 1), matrix(kind, columns, gap_out, 2)
            bias = np.random.default_rng(3).standard_normal(columns).astype(np.float32)
            scale = np.random.default_rng(4).standard_normal((ROWS, 1)).astype(np.float32)
            wanted = op.run(NUMPY, np.ascontiguousarray(x), bias, scale)
            launch = op.launch(device, x if in_place else out, x, bias, scale)
            assert launch is not None
            launches.append((launch, x if in_place else out, wanted))
    tolerance = 1e-6 if kind == FLOAT32 else 1e-2
    for launch, out, wanted in launches:
        launch()
        assert np.allclose(out.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance / 10)
