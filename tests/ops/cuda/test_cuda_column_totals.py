"""Kernels along rows add up totals of columns as they go from row to row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT32
from mspc.ops.fused.elementwise import FusedElementwise
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator

NUMPY: Any = SimpleNamespace(xp=np)  # all that the operators ask for
NORM = (
    "Cast(x0, dst_type=Float32)", "Mul(x1, x2)", "Mul(t0, t1)", "Mul(t0, x3)", "Mul(t3, x1)",
    "ReduceMean(t4, keep_dims=true, axis=(2))", "Mul(t1, t5)", "Sub(t3, t6)", "Cast(t7, dst_type=BFloat16)",
    "ReduceSum(t2, keep_dims=false, axis=(0, 1))", "ReduceMean(t0, keep_dims=false, axis=(0, 1))",
    "ReduceMax(x1, keep_dims=false, axis=(0, 1))",
)  # fmt: skip
"""A norm's gradients, of its scale and of its bias too: of x0, the result's, x1, the operand, x2, 1 / deviation."""
SHAPES = ((3, 70, 24), (2, 20, 96), (5, 7, 33), (2, 5, 1536), (2, 9, 1000), (1, 2, 8))


class Names(Emulator):
    """A device that keeps the names of its kernels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, multiprocessors=1)
        self.names: list[str] = []

    def kernel(self, source: str, name: str) -> Any:
        self.names.append(name)
        return super().kernel(source, name)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_totals_of_columns_come_with_the_rows(tmp_path: Path) -> None:
    device, op = Names(tmp_path), FusedElementwise(NORM, (7, 8, 9, 10, 11))
    random = np.random.default_rng(1)
    made: list[tuple[Any, Any, Any]] = []
    for shape in SHAPES:
        dout = random.standard_normal(shape).astype(BFLOAT16.numpy)
        x, rows = (random.standard_normal(s).astype(np.float32) for s in (shape, (*shape[:2], 1)))
        scale = random.standard_normal(shape[2:]).astype(FLOAT32.numpy)
        wanted = op.run(NUMPY, dout, x.copy(), rows, scale)
        outs = (x, *(np.zeros_like(array) for array in wanted[1:]))  # the first lies where an operand does
        made.append((wanted, outs, op.launch(device, [dout, x, rows, scale], outs)))
    assert device.names == ["row_chain", *["column_totals"] * 2] * len(SHAPES)  # sums and a mean; a maximum
    for wanted, outs, launch in made:
        launch()
        for a, b in zip(wanted, outs, strict=True):
            bound = 1e-2 if a.itemsize == 2 else 1e-5
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), bound, bound)
