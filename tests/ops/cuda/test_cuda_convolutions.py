"""Convolutions by a GPU's products of matrices, for arrays that its library does not take, beside NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ops.convolution import base
from mspc.ops.convolution.base import Convolution, last_order
from mspc.ops.op import REGISTRY, load_operators
from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda.cuda_emulator import NEEDED

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
NUMPY: Any = SimpleNamespace(xp=np)
ERRORS = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3}
load_operators()
CONVOLUTIONS = [kind for kind in REGISTRY.values() if issubclass(kind, Convolution)]


class WithoutLibrary(EmulatedGpu):
    """A GPU whose library takes no convolution. products: how many were made."""

    products_made = 0

    def convolution(self, *given: Any) -> None:
        return None

    def matmul(self, *given: Any, **options: Any) -> Any:
        self.products_made += 1
        return super().matmul(*given, **options)


def cases(kind: type[Any], dtype: str) -> Iterator[tuple[Any, list[Any]]]:
    """Every sample that is no convolution of single channels, with channels second and last."""
    generator = np.random.default_rng(1)
    for sample in kind.samples:
        op = kind(**sample.fields)
        arrays = [generator.normal(size=shape).astype(dtype) for shape in sample.shapes]
        if op.group == op.image_and_weights([SimpleNamespace(shape=a.shape) for a in arrays])[0][1]:
            continue
        yield op, arrays
        order = last_order(op.dims + 2)
        yield op.with_channels_last(), [np.ascontiguousarray(array.transpose(order)) for array in arrays]


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("most", [base.COLUMNS, 1])
def test_convolutions_equal_numpys(tmp_path: Path, monkeypatch: Any, dtype: str, most: int) -> None:
    """Of all images at once, and of one after the other."""
    monkeypatch.setattr(base, "COLUMNS", most)
    device: Any = WithoutLibrary(tmp_path)
    count = 0
    for kind in CONVOLUTIONS:
        for op, arrays in cases(kind, dtype):
            before = device.products_made
            wanted = op.kernel(NUMPY)(*[array.astype(np.float64) for array in arrays])
            inputs = [device.empty(array.shape, array.dtype) for array in arrays]
            for place, array in zip(inputs, arrays, strict=True):
                place[...] = array
            out = device.empty(wanted.shape, dtype)
            out[...] = np.nan
            launch = op.launch(device, inputs, out)
            assert launch is not None, op
            assert device.products_made > before
            device.scratch(1 << 20).fill(255)
            for _ in range(2):
                launch()
                apart = np.abs(out - wanted).max() / np.abs(wanted).max()
                assert apart <= ERRORS[dtype], f"{op}: {apart}"
            for place, array in zip(inputs, arrays, strict=True):
                np.testing.assert_array_equal(place, array)
            count += 1
    assert count > 30
