"""Copies between arrays on the GPU or the host and host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ops.device import Array


class PinnedArray(np.ndarray):
    """Array in pinned host memory, which executors use without a copy."""


def pinned_copy(device: Any, values: Any, shape: tuple[int, ...], dtype: Any) -> PinnedArray:
    """Return values in pinned memory; a scalar is broadcast."""
    found = device.pinned(shape, dtype).view(PinnedArray)
    found[...] = values
    return found


def fetched(device: Any, array: Array, host: Any) -> Any:
    """Return `host`, filled with the values of an array of the GPU or the host after the device's work so far."""
    device.synchronize()
    if isinstance(array, np.ndarray):
        np.copyto(host, array)
        return host
    with device.stream("compute"):
        device.receive(array, host)
    device.synchronize()
    return host


def put(device: Any, host: Any, array: Array) -> None:
    """Copy a host array to an array of the GPU or the host."""
    if isinstance(array, np.ndarray):
        np.copyto(array, host)
    else:
        device.send(host, array)
    device.synchronize()
