"""CUDA kernels of operators that are not elementwise, on a GPU: against NumPy, and how fast they are (with -s)."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ops.math.scans import ScanOp
from tests.gpu.arrays import cupy, fetched, opened, put
from tests.graphs import REGISTRY, TensorType, dtype_of, element_types
from tests.ops.cuda.cuda_cases import Case, NumPy, all_cases

CASES = {case.name: case for case in all_cases()}
MIN_BANDWIDTH = 0.25
"""The share of a copy's rate that every timed kernel of a large tensor must reach."""
MIN_SCAN_BANDWIDTH = 0.15
"""The same for scans, whose elements wait for each other: 0.20 to 0.74 on an H200."""


@pytest.fixture(scope="module")
def device() -> Any:
    found = opened()
    found.step[...] = NumPy.step
    return found


@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_numpy(device: Any, name: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    with np.errstate(all="ignore"):
        expected = case.expected(inputs)
    operands = [put(device, x, case.shift * x.itemsize) for x in inputs]
    sevens = [np.full(t.shape, 7).astype(t.dtype.numpy) for t in case.results()]
    made = [put(device, x, case.shift * x.itemsize) for x in sevens]
    if case.alias >= 0:
        made[0] = operands[case.alias]
    launch = case.op.launch(device, case.outs(made), *operands)
    assert launch is not None
    launch()
    cupy.cuda.runtime.deviceSynchronize()
    case.check([fetched(device, x) for x in made], expected)


def timed(launch: Any, repeats: int = 20) -> float:
    """Seconds of one call."""
    for _ in range(3):
        launch()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    for _ in range(repeats):
        launch()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end) / 1e3 / repeats


LARGE: list[tuple[str, dict[str, Any], Sequence[tuple[int, ...]], Sequence[str]]] = [
    ("Softmax", {}, [(65536, 512)], []),
    ("Softmax", {}, [(2048, 50304)], []),
    ("SoftmaxBackward", {}, [(65536, 512)] * 2, []),
    ("LayerNorm", {"epsilon": 1e-5}, [(32768, 1024), (1024,), (1024,)], []),
    ("LayerNorm", {"epsilon": 1e-5}, [(8192, 1024), (1024,), (1024,)], []),
    ("LayerNormGrad", {"epsilon": 1e-5}, [(32768, 1024), (32768, 1024), (32768, 1), (32768, 1), (1024,)], []),
    ("LayerNormGammaGrad", {"epsilon": 1e-5}, [(32768, 1024), (32768, 1024), (32768, 1), (32768, 1)], []),
    ("RmsNorm", {}, [(32768, 1024), (1024,)], []),
    ("SoftmaxCrossEntropyWithLogits", {}, [(4096, 16384)] * 2, []),
    ("SparseSoftmaxCrossEntropyWithLogits", {"is_grad": True}, [(4096, 50257), (4096,)], ["", "Int32"]),
    ("SparseSoftmaxCrossEntropyWithLogits", {}, [(4096, 50257), (4096,)], ["", "Int32"]),
    ("ReduceSum", {"axis": (0,)}, [(32768, 1024)], []),
    ("ReduceSum", {"axis": (0,)}, [(8192, 1024)], []),
    ("ReduceSum", {"axis": (0,)}, [(8192, 4096)], []),
    ("ReduceSum", {"axis": (1,)}, [(32768, 1024)], []),
    ("ReduceSum", {"axis": ()}, [(32768, 1024)], []),
    ("ReduceSum", {"axis": (0,)}, [(8, 4194304)], []),
    ("Transpose", {"perm": (0, 2, 1, 3)}, [(64, 512, 16, 64)], []),
    ("Transpose", {"perm": (1, 0)}, [(8192, 4096)], []),
    ("Transpose", {"perm": (0, 2, 3, 1)}, [(64, 512, 16, 64)], []),
    ("Concat", {"axis": 1}, [(32768, 512), (32768, 512)], []),
    ("Split", {"axis": 1, "output_num": 3}, [(16384, 3072)], []),
    ("BroadcastTo", {"shape": (32768, 1024)}, [(1024,)], []),
    ("BroadcastTo", {"shape": (32768, 1024)}, [(32768, 1)], []),
    ("StridedSliceGrad", {"begin": (0, 0), "end": (32768, 512), "strides": (1, 1), "shape": (32768, 1024)},
     [(32768, 512)], []),
    ("Gather", {}, [(50257, 1024), (32, 1024)], ["", "Int32"]),
    ("GatherGrad", {"size": 50257}, [(32, 512, 1024), (32, 512)], ["", "Int32"]),
    ("GatherGrad", {"size": 512}, [(32, 512, 1024), (32, 512)], ["", "Int32"]),
    ("Dropout", {"keep_prob": 0.9}, [(32768, 1024)], []),
    ("Tril", {}, [(128, 512, 512)], []),
    ("Zeros", {"shape": (32768, 1024)}, [], []),
    ("CumSum", {"axis": 1}, [(8, 1024, 768)], []),
    ("CumSum", {"axis": 1}, [(32, 1024, 1024)], []),
    ("CumSum", {"axis": 1}, [(8192, 4096)], []),
    ("CumSum", {"axis": 1}, [(1048576, 32)], []),
    ("CumSum", {"axis": 0}, [(33554432,)], []),
    ("CumSum", {"axis": 0}, [(32768, 1024)], []),
    ("CumSum", {"axis": 0}, [(2097152, 16)], []),
    ("Cummax", {"axis": 1}, [(32, 1024, 1024)], []),
    ("CumulativeLogsumexp", {"axis": 1}, [(32, 1024, 1024)], []),
    ("CumulativeLogsumexpGrad", {"axis": 1}, [(32, 1024, 1024)] * 3, []),
    ("CumulativeLogsumexp", {"axis": 1}, [(8192, 4096)], []),
    ("LinearRecurrence", {"axis": 1}, [(32, 1024, 1024)] * 2, []),
    ("LinearRecurrenceGrad", {"axis": 1}, [(32, 1024, 1024)] * 3, []),
]  # fmt: skip


TRIES = 3
"""Whatever else a GPU does at the same time may take one."""


@pytest.mark.parametrize("floats", ["Float32", "BFloat16"])
def test_bandwidth_of_large_tensors(device: Any, floats: str) -> None:
    size = 256 << 20
    source, target = cupy.empty((size,), np.uint8), cupy.empty((size,), np.uint8)
    stream = cupy.cuda.get_current_stream()
    copy = 2 * size / timed(functools.partial(target.data.copy_from_device_async, source.data, size, stream)) / 1e9
    print(f"\n{floats}: a copy of 256 MiB runs at {copy:.0f} GB/s")
    del source, target
    slow: list[str] = []
    for name, fields, shapes, names in LARGE:
        given = [dtype_of(n or floats) for n in (names or [floats] * len(shapes))]
        types = tuple(TensorType(dtype, shape) for dtype, shape in zip(given, shapes, strict=True))
        op = REGISTRY[name](**fields)
        operands = [put(device, np.full(t.shape, 1).astype(t.dtype.numpy)) for t in types]
        if len(operands) == 2 and types[1].dtype.is_integer:
            classes = fields.get("size", types[0].shape[-1] if "Entropy" in name else types[0].shape[0])
            draw = np.random.default_rng(0).integers(0, classes, types[1].shape)
            operands[1] = put(device, draw.astype(np.int32))
        results = element_types(op.infer(*types))
        made = [put(device, np.zeros(t.shape, t.dtype.numpy)) for t in results]
        launch = op.launch(device, Case(name, op, types).outs(made), *operands)
        assert launch is not None
        moved = sum(t.nbytes for t in results) + sum(t.nbytes for t in types)
        if name == "Gather":
            moved = 2 * results[0].nbytes
        rate = seconds = 0.0
        least = MIN_SCAN_BANDWIDTH if isinstance(op, ScanOp) else MIN_BANDWIDTH
        for _ in range(TRIES):
            seconds = timed(launch)
            rate = moved / seconds / 1e9
            if rate >= least * copy:
                break
        print(f"{name:36} {' '.join(str(s) for s in shapes):58} {seconds * 1e6:8.1f} us {rate:6.0f} GB/s "
              f"{rate / copy:5.2f} of a copy")  # fmt: skip
        if rate < least * copy and moved > 100e6:
            slow.append(f"{name} {shapes}: {rate:.0f} GB/s")
        del operands, made, launch
    assert not slow, "\n".join(slow)
