"""The kernels of all gradients of LayerNorm, run on the CPU beside NumPy's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, dtype_of
from mspc.ops.cuda.norms import fits
from mspc.ops.fused.norms import FusedLayerNorm, FusedLayerNormGrad
from mspc.ops.nn.norm import LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad
from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda.cuda_emulator import NEEDED, placed

EPSILON = 1e-5
NUMPY: Any = SimpleNamespace(xp=np)  # all that the operators ask for
CASES = [
    # rows, columns, the element types of x and of the result, whether there is an addend
    (5, 64, FLOAT32, FLOAT32, True),
    (37, 256, FLOAT32, FLOAT32, False),
    (67, 1024, BFLOAT16, BFLOAT16, True),
    (35, 1024, BFLOAT16, FLOAT32, True),
    (3, 96, FLOAT16, FLOAT16, True),
    (1, 32, BFLOAT16, FLOAT32, False),
    (33, 160, FLOAT64, FLOAT64, True),
    (19, 1312, FLOAT16, FLOAT16, True),  # threads without a last pack, rows of two warps
    (17, 2080, BFLOAT16, BFLOAT16, False),  # of four
    (9, 8160, BFLOAT16, BFLOAT16, False),  # of eight
    (5, 8160, FLOAT64, FLOAT64, True),  # of sixteen, with room for one row on its way
]


def filled(device: EmulatedGpu, shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    array = device.empty(shape, dtype.numpy)
    array[...] = np.abs(np.random.default_rng(seed).standard_normal(shape)) + 0.1
    return array


def check(found: Any, wanted: Any, dtype: DType) -> None:
    # Two roundings may differ by a unit each.
    error = {"BFloat16": 2**-6, "Float16": 2**-9, "Float32": 2e-5, "Float64": 1e-11}[dtype.name]
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=error, atol=error)


class Work:
    """Operators that are launched, one after the other, once all are prepared."""

    def __init__(self, device: EmulatedGpu) -> None:
        self.device = device
        self.launches: list[tuple[Any, Any, Any]] = []

    def add(self, op: Any, inputs: list[Any], types: list[tuple[tuple[int, ...], DType]], wanted: Any = None) -> None:
        out = tuple(self.device.empty(shape, dtype.numpy) for shape, dtype in types)
        launch = op.launch(self.device, out, *inputs)
        assert launch is not None
        self.launches.append((launch, out, wanted or op.run(NUMPY, *inputs)))

    def check(self) -> None:
        for launch, out, wanted in self.launches:
            launch()
            for got, array in zip(out, wanted, strict=True):
                check(got, array, dtype_of(got.dtype))


def gradients(device: EmulatedGpu, rows: int, columns: int, source: DType, target: DType, adds: bool) -> list[Any]:
    """The operands of FusedLayerNormGrad."""
    computing = FLOAT64 if source == FLOAT64 else FLOAT32
    full, row, column = (rows, columns), (rows, 1), (columns,)
    kinds = [(full, source), (full, source), (row, computing), (row, computing), (column, computing), (full, target)]
    return [filled(device, shape, dtype, seed) for seed, (shape, dtype) in enumerate(kinds[: 5 + adds])]


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize("eager", [False, True], ids=["late copies", "early copies"])
def test_gradients_equal_numpys(tmp_path: Path, eager: bool) -> None:
    device = EmulatedGpu(tmp_path)
    device.eager = eager
    work = Work(device)
    for rows, columns, source, target, adds in CASES:
        inputs = gradients(device, rows, columns, source, target, adds)
        kind = dtype_of(inputs[4].dtype)
        types = [((rows, columns), target), ((columns,), kind), ((columns,), kind)]
        work.add(FusedLayerNormGrad(EPSILON, target, adds), inputs, types)
        # The gradient of the result is a sum, of terms of two types.
        inputs += [filled(device, (rows, columns), other, 9) for other in (FLOAT64 if source == FLOAT64 else FLOAT32,)]
        work.add(FusedLayerNormGrad(EPSILON, target, adds, True), inputs, types)
    # A tensor that begins where a thread can only copy one element.
    inputs = gradients(device, 3, 96, FLOAT16, FLOAT16, False)
    inputs[1] = placed(inputs[1], 2)
    work.add(FusedLayerNormGrad(EPSILON, FLOAT16), inputs, [((3, 96), FLOAT16), ((96,), FLOAT32), ((96,), FLOAT32)])
    work.check()


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_a_norm_is_launched_whatever_its_width(tmp_path: Path) -> None:
    device = EmulatedGpu(tmp_path)
    work = Work(device)
    for rows, columns, adds in ((5, 64, False), (5, 72, True), (3, 1056, True), (2, 8160, False)):
        full, row, column = (rows, columns), (rows, 1), (columns,)
        shapes = [full, *[full] * adds, column, column]
        inputs = [filled(device, s, BFLOAT16 if s == full else FLOAT32, seed) for seed, s in enumerate(shapes)]
        types = [(full, BFLOAT16), (row, FLOAT32), (row, FLOAT32), *[(full, BFLOAT16)] * adds]
        # The rounded sum is normalised.
        total = inputs[0] + inputs[1] if adds else inputs[0]
        wanted = FusedLayerNorm(EPSILON, BFLOAT16).run(NUMPY, total, *inputs[-2:])
        work.add(FusedLayerNorm(EPSILON, BFLOAT16, adds), inputs, types, (*wanted, *[total] * adds))
    work.check()


@pytest.mark.parametrize(("columns", "target", "source"), [(72, FLOAT32, FLOAT32), (64, FLOAT32, FLOAT16)])
def test_gradients_that_no_kernel_takes(tmp_path: Path, columns: int, target: DType, source: DType) -> None:
    device = EmulatedGpu(tmp_path)
    inputs = gradients(device, 5, columns, FLOAT32, source, True)
    out = tuple(device.empty(shape, dtype.numpy) for shape, dtype in
                [((5, columns), target), ((columns,), FLOAT32), ((columns,), FLOAT32)])  # fmt: skip
    assert FusedLayerNormGrad(EPSILON, target, True).launch(device, out, *inputs) is None


def test_only_rows_of_whole_warps_fit() -> None:
    assert [n for n in (31, 32, 48, 96, 768, 1000, 1024, 8192, 8224, 16384) if fits(n)] == [32, 96, 768, 1024, 8192]


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_norms_of_halves_with_parameters_of_float32(tmp_path: Path) -> None:
    device = EmulatedGpu(tmp_path)
    work = Work(device)
    full, row = (5, 64), (5, 1)
    x, dout = (filled(device, full, FLOAT16, seed) for seed in (1, 2))
    gamma, beta = (filled(device, (64,), FLOAT32, seed) for seed in (3, 4))
    mean, variance = (filled(device, row, FLOAT32, seed) for seed in (5, 6))
    wide, statistic = x.astype(np.float32), (row, FLOAT32)
    norm, root = LayerNorm(-1, -1, EPSILON), RmsNorm(EPSILON)
    work.add(norm, [x, gamma, beta], [(full, FLOAT16), statistic, statistic], norm.run(NUMPY, wide, gamma, beta))
    work.add(root, [x, gamma], [(full, FLOAT16), statistic], root.run(NUMPY, wide, gamma))
    for op, operands in ((LayerNormGrad(-1, EPSILON), [mean, variance, gamma]), (RmsNormGrad(), [variance, gamma])):
        out = device.empty(full, FLOAT16.numpy)
        launch = op.launch(device, out, dout, x, *operands)
        work.launches.append((launch, (out,), (op.run(NUMPY, dout.astype(np.float32), wide, *operands),)))
    work.check()
