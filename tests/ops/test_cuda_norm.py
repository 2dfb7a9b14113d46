"""The kernel of all gradients of LayerNorm, run on the CPU beside NumPy's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mspc.ops.cuda_norm import fits
from mspc.ops.fused_norm import FusedLayerNormGrad
from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda_emulator import NEEDED

CASES = [(5, 64, True), (37, 256, False), (33, 1024, True), (3, 96, True), (1, 32, False)]


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_gradients_equal_numpys(tmp_path: Path) -> None:
    device = EmulatedGpu(tmp_path)
    launches = []
    for rows, columns, adds in CASES:
        generator = np.random.default_rng(rows)
        shapes = [(rows, columns)] * 2 + [(rows, 1)] * 2 + [(columns,)] + [(rows, columns)] * adds
        inputs = [device.empty(shape, np.float32) for shape in shapes]
        for array in inputs:
            array[...] = np.abs(generator.standard_normal(array.shape)) + 0.1
        op = FusedLayerNormGrad(1e-5, adds=adds)
        out = tuple(device.empty(shape, np.float32) for shape in ((rows, columns), (columns,), (columns,)))
        launches.append((op, inputs, out, op.launch(device, inputs, out)))
    for op, inputs, out, launch in launches:
        assert launch is not None
        launch()
        wanted = op.run(SimpleNamespace(xp=np), *inputs)  # type: ignore[arg-type]  # all that it asks for
        for got, array in zip(out, wanted, strict=True):
            np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-5)


def test_only_rows_of_whole_warps_fit() -> None:
    assert [n for n in (31, 32, 48, 96, 768, 1000, 1024, 8192, 8200, 16384) if fits(n)] == [32, 96, 768, 1024, 8192]
