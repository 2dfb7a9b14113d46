"""Progress of a rank's GPU, written to memory that the rank's watch reads, and the wait for a step.

The host sees nothing of a replayed step. So a one-thread kernel before every collective writes its position to host
memory; the watch passes it to the other ranks (`runtime.faults.stopped`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mspc.ir.diagnostics import shown_bytes
from mspc.ops.collective.base import Collective
from mspc.ops.device import Launch, nothing
from mspc.runtime.available_memory import REMEDY
from mspc.runtime.faults.stopped import END, STEP_SHIFT, packed

# Launches that need the host while they run.


class HostQuery:
    """Launch that needs the host while it runs. run: waits for the host's data. decided: when captured it does not need
    the host, because the GPU decides; other such launches are never captured."""

    def __init__(self, run: Launch, decided: bool = False) -> None:
        self._run = run
        self.decided = decided

    def __call__(self) -> None:
        self._run()


def with_host_query(launch: Launch, run: Launch) -> Launch:
    """Return `run` as a launch that needs the host in the same way as `launch`."""
    return HostQuery(run, launch.decided) if isinstance(launch, HostQuery) else run


_MARK = f"""
extern "C" __global__ void put_mark(u64 place, const long long* step, long long where) {{
    *(volatile long long*)place = where | step[0] << {STEP_SHIFT};
}}
"""
_SPIN = 0.001
"""Seconds for which a wait polls without sleeping; a short step ends within that time."""
_PAUSE = 0.00005
_CHECK = 0.25
"""Seconds between two checks for NCCL errors."""


class GpuProgress:
    """Progress of the GPU of one rank.

    graph: number of the graph whose launches are being made; set before each. device: see `GpuDevice`. watch: of this
    job, or None on one rank: then nothing is marked.
    """

    def __init__(self, device: Any, watch: Any) -> None:
        self.graph = 0
        self._device = device
        self._place: Any = None
        if watch is not None:
            self._place = device.pinned((1,), "int64")
            self._place[0] = 0
            watch.marks = lambda: int(self._place[0])

    def mark(self, index: int = END) -> Launch:
        """Return a launch that reports that this GPU has reached the collective of node `index`, by default the step's
        end."""
        if self._place is None:
            return nothing
        kernel = self._device.kernel(_MARK, "put_mark")
        # Pinned host memory has the same address on host and device.
        arguments = (np.uint64(self._place.ctypes.data), self._device.step, np.int64(packed(self.graph, 0, index)))
        return lambda: kernel(1, 1, arguments)

    def before(self, index: int, launch: Launch, joined: bool = False) -> Launch:
        """Return the launch of a collective's node with its mark. joined: the collective's own kernel writes it."""
        if self._place is None:
            return launch
        if joined:
            comm, where = self._device.comm, (self._place.ctypes.data, packed(self.graph, 0, index))

            def telling() -> None:
                comm.mark = where
                launch()
                comm.mark = (0, 0)

            return with_host_query(launch, telling)
        mark = self.mark(index)

        def marked() -> None:
            mark()
            launch()

        return with_host_query(launch, marked)

    def wait(self, event: Any) -> None:
        """Return once the event has occurred. Raise ExecutionError if NCCL has failed."""
        _poll(event, self.check)

    def check(self) -> None:
        """Check for NCCL errors."""
        look = getattr(self._device.comm, "check", None)
        if look is not None:
            look()


def _poll(event: Any, check: Callable[[], None]) -> None:
    begun = checked = time.monotonic()
    while not event.done:
        now = time.monotonic()
        if now - checked > _CHECK:
            checked = now
            check()
        if now - begun > _SPIN:
            time.sleep(_PAUSE)


def wait_for(device: Any, event: Any, interruptible: bool = False) -> None:
    """Return once an event of the device has occurred. Raise ExecutionError like `GpuProgress.wait`. interruptible: a
    signal to this process may end the wait."""
    if device.progress is not None:
        device.progress.wait(event)
    elif interruptible:
        _poll(event, nothing)
    else:
        event.synchronize()


def communicates(node: Any) -> bool:
    """Return whether a node waits for other ranks."""
    return isinstance(node.op, Collective) and node.op.communicates


def out_of_memory(
    node: Any, nbytes: int, peak: int, held: Mapping[str, int], rank: int, index: int
) -> tuple[str, list[str]]:
    """Return message and notes for a GPU without enough memory. node: the node that needed memory, or None for the
    entire step. nbytes: bytes that it needed. peak: planned bytes. held: bytes by purpose. index: of the GPU."""
    what = f"{node.label} ({node.type})" if node is not None else "the step"
    message = (
        f"out of memory on GPU {index} (rank {rank}): {what} needs {shown_bytes(nbytes)}; "
        f"the plan's peak is {shown_bytes(peak)}"
    )
    notes = [f"{name}: {shown_bytes(size)}" for name, size in held.items()]
    notes.append(REMEDY)
    return message, notes
