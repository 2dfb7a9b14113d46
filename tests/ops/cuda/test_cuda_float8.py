"""CUDA kernels of Float8: bytes that are transposed, and matmuls whose operands are widened where cuBLASLt has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mspc.ir.types import FLOAT8_E4M3, FLOAT32
from mspc.ops.cuda.moves import transpose_bytes
from mspc.ops.math.float8 import ScaledMatMul
from tests.ops.cuda.cuda_cases import NumPy
from tests.ops.cuda.cuda_emulator import Emulator, placed


def test_bytes_are_transposed(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    for shape in ((16, 16), (64, 144), (208, 80)):
        source = placed(np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8))
        target = placed(np.zeros(shape[::-1], np.uint8))
        transpose_bytes(device, source, target)()  # type: ignore[arg-type]  # all that it calls
        np.testing.assert_array_equal(target, source.T)


def test_matmuls_with_a_scale_for_each_block_equal_numpy(tmp_path: Path) -> None:
    device, random = Emulator(tmp_path), np.random.default_rng(1)
    device.scaled_matmul = lambda *_: None  # type: ignore[attr-defined]  # as for blocks on a GPU
    for ta, tb, scales in ((False, True, ((8, 2), (2, 2))), (True, False, ((2, 1), (2, 4))), (False, False, ((), ()))):
        x, y = (
            placed(random.standard_normal((32, 8) if turned else (8, 32)).astype(FLOAT8_E4M3.numpy))
            for turned in (ta, not tb)
        )
        given = [placed(np.asarray(random.uniform(0.5, 2, shape), np.float32)) for shape in scales]
        op, out = ScaledMatMul(ta, tb, FLOAT32), placed(np.zeros((8, 8), np.float32))
        launch = op.launch(device, out, x, y, *given)  # type: ignore[arg-type]  # as above
        assert launch is not None
        launch()
        np.testing.assert_allclose(out, op.run(NumPy(), x, y, *given), rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]
