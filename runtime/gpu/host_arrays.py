"""Copies of arrays from and to memory of the host; the arrays may be on the host or on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ops.device import Array


class PinnedArray(np.ndarray):
    """Array in pinned memory of the host, which executors use without a copy."""


def pinned_copy(device: Any, values: Any, shape: tuple[int, ...], dtype: Any) -> PinnedArray:
    """Return values in pinned memory; a number is repeated."""
    found = device.pinned(shape, dtype).view(PinnedArray)
    found[...] = values
    return found


def fetched(device: Any, array: Array, host: Any) -> Any:
    """Return `host`, filled with the values of an array of the GPU or of the host, once the device has done its
    work."""
    device.synchronize()
    if isinstance(array, np.ndarray):
        np.copyto(host, array)
        return host
    with device.stream("compute"):
        device.receive(array, host)
    device.synchronize()
    return host


def put(device: Any, host: Any, array: Array) -> None:
    """Copy an array of the host to one of the GPU, or of the host."""
    if isinstance(array, np.ndarray):
        np.copyto(array, host)
    else:
        device.send(host, array)
    device.synchronize()
