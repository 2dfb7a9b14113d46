"""Helpers that tests on a GPU share: the device, arrays that go there and come back, launches. Skipped where there is
none."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.graphs import Op, TensorType, dtype_of

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
device_module = pytest.importorskip("mspc.runtime.gpu.device", reason="nvmath-python is not installed")


def opened(deterministic: bool = False, tf32: bool = False) -> Any:
    """This machine's GPU."""
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        count = 0
    if not count:
        pytest.skip("no GPU")
    return device_module.GpuDevice(deterministic=deterministic, tf32=tf32)


class NumPy:
    """The backend of a kernel's own numbers."""

    xp = np
    comm = None
    step = 0


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Normal numbers."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def put(device: Any, array: Any, shift: int = 0) -> Any:
    """A copy on the GPU that begins `shift` bytes behind an aligned address."""
    array = np.asarray(array)
    host = np.ascontiguousarray(array)
    room = device.empty((max(1, array.nbytes + shift),), np.uint8)
    found = device.view(room, shift, array.shape, array.dtype)
    device.send(host, found)
    _wait(device)
    return found


def fetched(device: Any, array: Any) -> Any:
    """A copy on the host, once all work on the GPU that may write the array is done."""
    found = np.empty(array.shape, array.dtype)
    _wait(device)
    device.receive(array, found)
    _wait(device)
    return found


def launched(device: Any, op: Op, arrays: Sequence[Any]) -> tuple[Callable[[], None], tuple[Any, ...]]:
    """An operator's launch on these arrays, and the arrays of its results, which hold NaN so far."""
    inferred: Any = op.infer(*[TensorType(dtype_of(a.dtype), tuple(a.shape)) for a in arrays])
    types = (inferred,) if isinstance(inferred, TensorType) else inferred.elements
    out = tuple(put(device, np.full(t.shape, np.nan, t.dtype.numpy)) for t in types)
    with device.stream("compute"):
        launch = op.launch(device, out[0] if len(out) == 1 else out, *arrays)
    assert launch is not None
    return launch, out


def kernels_named(device: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are asked for from now on."""
    names: list[str] = []
    original = device.kernel

    def kernel(source: str, name: str) -> Any:
        names.append(name)
        return original(source, name)

    monkeypatch.setattr(device, "kernel", kernel)
    return names


def _wait(device: Any) -> None:
    device.synchronize()
    cupy.cuda.get_current_stream().synchronize()
