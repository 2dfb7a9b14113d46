"""The kernels of pooling and of the statistics of channels, run on the CPU beside NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, dtype_of
from mspc.ops.convolution import pooling
from mspc.ops.convolution.pooling import Pooling
from mspc.ops.convolution.window import ImageOperator, last_order
from mspc.ops.fused.norms import BatchStatistics, JoinMovingStatistics, MovingStatistics
from mspc.ops.nn.batch_norm import ChannelStatistics
from mspc.ops.op import REGISTRY, load_operators
from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda.cuda_emulator import NEEDED

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
NUMPY: Any = SimpleNamespace(xp=np)
ERRORS = {"BFloat16": 2**-6, "Float16": 2**-9, "Float32": 2e-5, "Float64": 1e-11}
load_operators()
POOLING = [kind for kind in REGISTRY.values() if isinstance(kind, type) and issubclass(kind, Pooling)]


def placed(device: EmulatedGpu, array: Any) -> Any:
    found = device.empty(array.shape, array.dtype)
    found[...] = array
    return found


def pooled(kind: type[Any]) -> Iterator[tuple[ImageOperator, list[Any]]]:
    """Every sample of an operator, whose values repeat, with channels second and last."""
    generator = np.random.default_rng(1)
    for sample in kind.samples:
        op = kind(**sample.fields)
        arrays = [np.round(generator.normal(size=shape), 1) for shape in sample.shapes]
        if len(arrays) == 3:  # a gradient of the greatest, which reads the result
            forward = REGISTRY[kind.__name__.removesuffix("Grad")](**sample.fields)
            arrays[1] = forward.run(NUMPY, arrays[0])
        yield op, arrays
        order = last_order(op.dims + 2)
        yield op.with_channels_last(), [np.ascontiguousarray(array.transpose(order)) for array in arrays]


@pytest.mark.parametrize(("dtype", "most"), [(FLOAT32, 4), (BFLOAT16, 2)], ids=str)
def test_pooling_equals_numpys(tmp_path: Path, dtype: DType, most: int) -> None:
    device: Any = EmulatedGpu(tmp_path)
    work: list[tuple[Any, Any, Any]] = []
    for kind in POOLING:
        for op, arrays in islice(pooled(kind), most):
            inputs = [placed(device, array.astype(dtype.numpy)) for array in arrays]
            wanted = op.kernel(NUMPY)(*[array.astype(np.float64) for array in inputs])
            out = device.empty(wanted.shape, dtype.numpy)
            launch = op.launch(device, out, *inputs)
            assert launch is not None, op
            work.append((launch, out, wanted))
    assert len(work) == most * len(POOLING) >= 8 * most
    for launch, out, wanted in work:
        launch()
        np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=ERRORS[dtype.name], atol=ERRORS[dtype.name])


def test_a_nan_is_the_greatest(tmp_path: Path) -> None:
    device: Any = EmulatedGpu(tmp_path)
    x = placed(device, np.array([1, np.nan, 3, np.nan, -np.inf, -np.inf, 2, 2], np.float32).reshape(1, 1, 2, 4))
    op = pooling.MaxPool(kernel_size=2, strides=2)
    found = device.empty((1, 1, 1, 2), np.float32)
    forward = op.launch(device, found, x)
    given, spread = placed(device, np.ones((1, 1, 1, 2), np.float32)), device.empty(x.shape, np.float32)
    gradient = pooling.MaxPoolGrad(kernel_size=2, strides=2).launch(device, spread, x, found, given)
    assert forward is not None
    assert gradient is not None
    forward()
    gradient()
    assert np.isnan(found).all()
    assert spread.reshape(-1).tolist() == [0, 1, 0, 1, 0, 0, 0, 0]


SHAPES = [(3, 5, 4, 8), (2, 3, 3, 5), (70, 24), (1, 4, 4, 256), (130, 1), (6, 64, 3, 3, 2), (1, 2)]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_statistics_equal_numpys(tmp_path: Path, dtype: DType) -> None:
    """Far from 0 too, where sums of squares would have no digits left."""
    device: Any = EmulatedGpu(tmp_path)
    device.multiprocessors = 3
    work: list[tuple[Any, Any, Any]] = []
    for number, shape in enumerate(SHAPES):
        for axis in {1, len(shape) - 1}:
            x = (np.random.default_rng(number).normal(size=shape) + 100 * (number % 2)).astype(dtype.numpy)
            kind = FLOAT64 if dtype == FLOAT64 else FLOAT32
            moving = [np.full(shape[axis], value, kind.numpy) for value in (0.5, 2)]
            op = BatchStatistics(0.25, axis)
            given = [placed(device, array) for array in (x, *moving)]
            out = tuple(device.empty((shape[axis],), kind.numpy) for _ in range(2))
            launch = op.launch(device, out, *given)
            wide = [x.astype(np.float64), *(array.astype(np.float64) for array in moving)]
            wanted = [*op.run(NUMPY, *wide), *wide[1:]]
            work.append((launch, [*out, *given[1:]], wanted))
            own = device.empty((1, 2, shape[axis]), kind.numpy)
            alone = ChannelStatistics(axis)
            work.append((alone.launch(device, own, *given[:1]), [own], [alone.run(NUMPY, wide[0])]))
    for launch, found, wanted in work:
        launch()
        for got, array in zip(found, wanted, strict=True):
            error = 1e-11 if dtype == FLOAT64 else 1e-5
            np.testing.assert_allclose(got, array, rtol=error, atol=error)


def test_a_stopped_step_moves_no_statistics(tmp_path: Path) -> None:
    device: Any = EmulatedGpu(tmp_path)
    device.stop[...] = 1
    given = [placed(device, np.arange(12, dtype=np.float32).reshape(4, 3)), *(np.ones(3, np.float32) for _ in "ab")]
    out = tuple(device.empty((3,), np.float32) for _ in range(2))
    launch = BatchStatistics(0.5).launch(device, out, *given)
    assert launch is not None
    launch()
    assert out[0].tolist() == [4.5, 5.5, 6.5]
    assert given[1].tolist() == given[2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("stop", [False, True])
def test_statistics_of_all_ranks(tmp_path: Path, stop: bool) -> None:
    """Those of ranks that have as many elements, joined, are those of all elements."""
    device: Any = EmulatedGpu(tmp_path)
    device.stop[...] = stop
    x = np.random.default_rng(4).normal(size=(6, 300, 5)).astype(np.float32) + 100
    gathered = np.concatenate([ChannelStatistics().run(NUMPY, part) for part in np.split(x, 3)])
    moving = [np.full(300, value, np.float32) for value in (0.5, 2)]
    given = [placed(device, array) for array in (gathered, *moving)]
    out = tuple(device.empty((300,), np.float32) for _ in "ab")
    launch = JoinMovingStatistics(0.25, 30).launch(device, out, *given)
    assert launch is not None
    launch()
    wide = x.astype(np.float64)
    found = [wide.mean((0, 2)), wide.var((0, 2)), *moving]
    if not stop:
        found[2:] = moving[0] * 0.75 + found[0] * 0.25, moving[1] * 0.75 + found[1] * 30 / 29 * 0.25
    for got, wanted in zip((*out, *given[1:]), found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("stop", [False, True])
def test_moving_statistics_of_all_ranks(tmp_path: Path, stop: bool) -> None:
    device: Any = EmulatedGpu(tmp_path)
    device.stop[...] = stop
    given = [placed(device, np.array(values, np.float32)) for values in ([1, 2], [3, 5], [7, 9], [4, 6])]
    before = [array.copy() for array in given]
    out = device.empty((2,), np.float32)
    op = MovingStatistics(0.25, 5)
    launch = op.launch(device, out, *given)
    assert launch is not None
    launch()
    assert out.tolist() == [1, 2]
    if not stop:
        op.run(NUMPY, *before)
    for got, wanted in zip(given, before, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert dtype_of(out.dtype) == FLOAT32
