"""Memory of the arrays of parameters that a rank's graphs share: the host's, or a GPU's.

NumPy is imported inside functions, because the device is chosen before any array is made.
"""

from __future__ import annotations

from typing import Any

Array = Any


class SharedMemory:
    """Memory of arrays that a rank's graphs share; here the host's."""

    copies = False
    """Whether `place` copies; otherwise nothing else may use the array."""

    def place(self, array: Array, on_host: bool = False) -> Array:
        """Return the array in the form that executors use, retain and write to. on_host: in host memory."""
        return array

    def like(self, placed: Array) -> Array:
        """Return a copy of the array in the same memory if `place` copies, else the array itself."""
        return placed

    def zeros(self, shape: tuple[int, ...], dtype: Any, on_host: bool = False) -> Array:
        """Return an array of zeros in the form that executors use."""
        import numpy as np

        return np.zeros(shape, dtype)

    def fetch(self, placed: Array) -> Array:
        """Return the values as a NumPy array, possibly the same one."""
        return placed

    def store(self, placed: Array, array: Array) -> None:
        """Replace the values by those of a NumPy array."""
        placed[...] = array

    def finish(self) -> None:
        """Wait for all steps in flight; raise their errors."""

    def peak_bytes(self) -> int:
        """Return the peak bytes of device memory."""
        return 0


class GpuMemory(SharedMemory):
    """Arrays on the GPU. executors: those that may have steps in flight."""

    copies = True

    def __init__(self, device: Any) -> None:
        self.device = device
        self.executors: list[Any] = []

    def zeros(self, shape: tuple[int, ...], dtype: Any, on_host: bool = False) -> Array:
        if on_host:
            from mspc.runtime.gpu.host_arrays import pinned_copy

            return pinned_copy(self.device, 0, shape, dtype)
        placed = self.device.zeros(shape, dtype)
        self.device.synchronize()
        return placed

    def place(self, array: Array, on_host: bool = False) -> Array:
        if on_host:
            from mspc.runtime.gpu.host_arrays import pinned_copy

            return pinned_copy(self.device, array, array.shape, array.dtype)
        placed = self.device.empty(array.shape, array.dtype)
        self._send(array, placed)
        return placed

    def like(self, placed: Array) -> Array:
        from mspc.runtime.gpu.host_arrays import PinnedArray, pinned_copy

        if isinstance(placed, PinnedArray):
            return pinned_copy(self.device, placed, placed.shape, placed.dtype)
        made = self.device.empty(placed.shape, placed.dtype)
        with self.device.stream("compute"):
            self.device.copy(placed, made)
        self.device.synchronize()
        return made

    def fetch(self, placed: Array) -> Array:
        import numpy as np

        from mspc.runtime.gpu.host_arrays import PinnedArray

        if isinstance(placed, np.ndarray) and not isinstance(placed, PinnedArray):
            return placed  # a constant of the script, which an executor copies
        self.finish()
        if isinstance(placed, PinnedArray):
            return np.array(placed)
        found = np.empty(placed.shape, placed.dtype)
        with self.device.stream("compute"):
            self.device.receive(placed, found)
        self.device.synchronize()
        return found

    def store(self, placed: Array, array: Array) -> None:
        from mspc.runtime.gpu.host_arrays import PinnedArray

        self.finish()
        if isinstance(placed, PinnedArray):
            placed[...] = array
        else:
            self._send(array, placed)
        self.device.writers.outside(placed)

    def finish(self) -> None:
        for executor in self.executors:
            executor.finish()

    def peak_bytes(self) -> int:
        return int(self.device.pool.total_bytes())  # a pool returns nothing

    def _send(self, array: Array, placed: Array) -> None:
        import numpy as np

        host = np.ascontiguousarray(array, placed.dtype).reshape(placed.shape)
        with self.device.stream("compute"):
            self.device.send(host, placed)
        self.device.synchronize()
