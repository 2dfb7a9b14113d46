"""What tests on a GPU share: the device, and arrays that go there and come back. Skipped where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
    return device_module.open_device(deterministic=deterministic, tf32=tf32)


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


def _wait(device: Any) -> None:
    device.synchronize()
    cupy.cuda.get_current_stream().synchronize()
