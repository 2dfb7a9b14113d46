"""Rows that do not fit into registers wait in shared memory for the passes over them, as far as there is room."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT32
from mspc.ops.fused.elementwise import FusedElementwise
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator

NUMPY: Any = SimpleNamespace(xp=np)  # all that the operators ask for
BODY = (
    "Cast(x0, dst_type=Float32)", "Add(t0, x1)", "LogSoftmax(t1, axis=-1)", "Exp(t2)", "Mul(t3, x1)",
    "Cast(t4, dst_type=BFloat16)",
)  # fmt: skip
MEMORY = (227 << 10, 227 << 9, 48 << 10)
"""Bytes of shared memory of a block."""
WAITING = {33_000: [2, 1, 0], 40_001: [1, 1, 0]}
"""Lengths of rows, and how many of the two operands find room there."""


class Texts(Emulator):
    """A device that keeps the texts of its kernels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts: list[str] = []

    def kernel(self, source: str, name: str) -> Any:
        self.texts.append(source)
        return super().kernel(source, name)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_numbers_are_the_same_wherever_rows_wait(tmp_path: Path) -> None:
    device, op = Texts(tmp_path), FusedElementwise(BODY, (5,))
    random = np.random.default_rng(1)
    made: list[tuple[Any, list[Any], Any]] = []
    for length in WAITING:
        x = random.standard_normal((3, length)).astype(BFLOAT16.numpy)
        added = random.standard_normal((3, length)).astype(FLOAT32.numpy)
        outs: list[Any] = []
        launches: list[Any] = []
        for device.block_memory in MEMORY:
            outs.append(x.copy())
            launches.append(op.launch(device, outs[-1], outs[-1], added))  # in the operand's place
        texts = device.texts[-len(MEMORY) :]
        assert [len(set(re.findall(r"memory \+ \d+", text))) for text in texts] == WAITING[length]
        made.append((op.run(NUMPY, x, added), outs, launches))
    for wanted, outs, launches in made:
        for launch in launches:
            launch()
        assert all(np.array_equal(outs[0], out) for out in outs[1:])
        assert np.allclose(outs[0].astype(np.float64), wanted.astype(np.float64), 1e-2, 1e-3)


SOFTMAX = (
    "ReduceMax(x0, keep_dims=true, axis=(1))", "Sub(x0, t0)", "Exp(t1)", "ReduceSum(t2, keep_dims=true, axis=(1))",
    "Log(t3)", "Sub(t1, t4)", "ReduceMean(t2, keep_dims=false, axis=(1))",
)  # fmt: skip


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_the_largest_and_the_sum_below_it_are_one_pass(tmp_path: Path) -> None:
    """Elements that grow, are minus infinity, at the front, everywhere, infinite or no number."""
    device, op = Texts(tmp_path), FusedElementwise(SOFTMAX, (5, 0, 3, 6))
    x = np.random.default_rng(2).standard_normal((6, 40_001)).astype(np.float32)
    x[0] = np.sort(x[0]) * 40
    x[1, :30_000] = -np.inf
    x[2] = -np.inf
    x[3, 7] = np.inf
    x[4, 20_000] = np.nan
    with np.errstate(all="ignore"):
        wanted = op.run(NUMPY, x.astype(np.float64))
    outs = [np.zeros(array.shape, np.float32) for array in wanted]
    launch: Any = op.launch(device, outs, x)
    assert len(re.findall("for \\(int k = 0; k < PACKS", device.texts[0])) == 2  # the other for the mean and the result
    assert "Largest::of" in device.texts[0]
    launch()
    for a, b in zip(wanted, outs, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)
