"""Convolutions by cuDNN, in both orders of the channels, beside NumPy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mspc.ops.convolution.window import Convolution, last_order
from mspc.ops.cuda.depthwise import depthwise
from mspc.ops.device import Sliding
from mspc.ops.op import REGISTRY
from tests.gpu.arrays import NumPy, drawn, fetched, launched, opened, put
from tests.ops.cuda.depthwise_cases import KINDS, Case, plain, same, seen, shapes_of

CONVOLUTIONS = [kind for kind in REGISTRY.values() if issubclass(kind, Convolution)]
NUMPY: Any = NumPy()
ERRORS = {"float64": 1e-12, "float32": 2e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture(scope="module", params=list(ERRORS))
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
        operands = [put(device, array) for array in arrays]
        with device.stream("compute"):
            launch = op.launch(device, out, *operands)
            if launch is None:  # cuDNN does not take it
                out[...] = op.kernel(device)(*operands)
            else:
                launch()
                device.capture(launch)()
        found = fetched(device, out).astype(np.float64)
        apart = np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-3)
        count += 1
        if not apart <= ERRORS[name]:
            failed.append(f"{op}: {apart}")
    assert count > 40
    assert not failed, f"{len(failed)} failed:\n" + "\n".join(failed[:40])


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_single_places(precise: tuple[Any, str], stride: int) -> None:
    """Convolutions of sizes for which products of matrices are tried beside cuDNN's kernels, forward and both
    gradients."""
    device, name = precise
    dtype = "float32" if name == "tf32" else name
    sizes: Any = {"out_channel": 64, "kernel_size": 1, "stride": stride, "data_format": "NHWC"}
    x, weight = drawn((4, 14, 14, 32), dtype, 1), drawn((64, 1, 1, 32), dtype, 2)
    seen = x[:, ::stride, ::stride].reshape(-1, 32).astype(np.float64)
    dout = drawn((4, 14 // stride, 14 // stride, 64), dtype, 3)
    rows, matrix = dout.reshape(-1, 64).astype(np.float64), weight.reshape(64, 32).astype(np.float64)
    back = np.zeros(x.shape)
    back[:, ::stride, ::stride] = (rows @ matrix).reshape(4, 14 // stride, 14 // stride, 32)
    cases = [
        (REGISTRY["Conv2D"](**sizes), (x, weight), seen @ matrix.T),
        (REGISTRY["Conv2DBackpropInput"](input_size=x.shape, **sizes), (dout, weight), back),
        (REGISTRY["Conv2DBackpropFilter"](filter_size=weight.shape, **sizes), (dout, x), rows.T @ seen),
    ]
    for op, operands, wanted in cases:
        launch, (out,) = launched(device, op, [put(device, operand) for operand in operands])
        with device.stream("compute"):
            launch()
        found = fetched(device, out).astype(np.float64).reshape(wanted.shape)
        assert np.abs(found - wanted).max() / np.abs(wanted).max() <= ERRORS[name], op


DEPTHWISE = [
    Case((8, 28, 28, 96), (7, 7), same(7), same(7)),
    Case((5, 7, 7, 130), (7, 7), same(7), same(7)),
    Case((4, 31, 30, 40), (5, 3), Sliding(2, 1, 2, 1), Sliding(0, 1, 2, 1)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise_kernels_equal_numpys(precise: tuple[Any, str], case: Case, kind: str) -> None:
    """All that are tried, whichever is the fastest."""
    device, name = precise
    dtype = "float32" if name == "tf32" else name
    arrays = {each: drawn(shape, dtype, number) for number, (each, shape) in enumerate(shapes_of(case).items())}
    made = "result" if kind == "forward" else kind
    operands = [arrays[each].astype(np.float64) for each in ("result", "image", "weight") if each != made]
    wanted = plain(kind, case, *operands)
    there = {each: put(device, array) for each, array in arrays.items()}
    launches = depthwise(device, kind, *seen(there), (case.rows, case.columns))
    assert launches
    for launch in launches:
        with device.stream("compute"):
            device.send(np.full(there[made].shape, np.nan, there[made].dtype), there[made])
            launch()
        found = fetched(device, there[made]).astype(np.float64)
        error = ERRORS["float32" if name == "tf32" else name]
        assert np.abs(found - wanted).max() <= error * np.abs(wanted).max()
