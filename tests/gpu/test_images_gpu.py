"""Convolutions by cuDNN and by products, in both orders of the channels, beside NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mspc.ops.convolution.base import Convolution
from mspc.ops.convolution.order import last_order
from mspc.ops.modules import load_operators
from mspc.ops.op import REGISTRY
from tests.gpu.arrays import NumPy, drawn, fetched, launched, opened, put

load_operators()
CONVOLUTIONS = [kind for kind in REGISTRY.values() if issubclass(kind, Convolution)]
NUMPY: Any = NumPy()
ERRORS = {"float32": 2e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture(scope="module", params=["float32", "tf32", "float16", "bfloat16"])
def precise(request: pytest.FixtureRequest) -> tuple[Any, str]:
    return opened(tf32=request.param == "tf32"), request.param


def cases(dtype: str) -> Iterator[tuple[Any, list[Any]]]:
    """Every sample of every convolution, with channels second and last."""
    for kind in CONVOLUTIONS:
        for number, sample in enumerate(kind.samples):
            op: Any = kind(**sample.fields)
            arrays = [drawn(shape, dtype, number) for shape in sample.shapes]
            order = last_order(op.dims + 2)
            yield op, arrays
            yield op.with_channels_last(), [np.ascontiguousarray(array.transpose(order)) for array in arrays]


def test_convolutions_equal_numpys(precise: tuple[Any, str]) -> None:
    device, name = precise
    failed: list[str] = []
    count = 0
    for op, arrays in cases("float32" if name == "tf32" else name):
        wanted = op.kernel(NUMPY)(*(array.astype(np.float64) for array in arrays))
        out = put(device, np.full(wanted.shape, np.nan, arrays[0].dtype))
        with device.stream("compute"):
            launch = op.launch(device, [put(device, array) for array in arrays], out)
        if launch is None:
            failed.append(f"{op}: nothing takes it: {list(device.convolutions.refused.values())[-1:]}")
            continue
        with device.stream("compute"):
            launch()
            replay = device.capture(launch)
            replay()
        found = fetched(device, out).astype(np.float64)
        apart = np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-3)
        count += 1
        if not apart <= ERRORS[name]:
            failed.append(f"{op}: {apart}")
    assert count > 40
    assert not failed, f"{len(failed)} failed:\n" + "\n".join(failed[:40])


def test_a_convolution_of_single_places(precise: tuple[Any, str]) -> None:
    """Of sizes for which products of matrices are tried beside cuDNN's kernels."""
    device, name = precise
    dtype = "float32" if name == "tf32" else name
    op: Any = REGISTRY["Conv2D"](out_channel=64, kernel_size=1, data_format="NHWC")  # type: ignore[call-arg]
    x, weight = drawn((4, 14, 14, 32), dtype, 1), drawn((64, 1, 1, 32), dtype, 2)
    launch, (out,) = launched(device, op, [put(device, x), put(device, weight)])
    with device.stream("compute"):
        launch()
    wanted = x.astype(np.float64) @ weight.reshape(64, 32).astype(np.float64).T
    found = fetched(device, out).astype(np.float64)
    assert np.abs(found - wanted).max() / np.abs(wanted).max() <= ERRORS[name]
