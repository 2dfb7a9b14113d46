"""Of several ways to compute the same the fastest is found by timing them. All ranks take the same one, and what was
found stays on disk for the next start.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from mspc.ops.device import Array, Launch
from mspc.runtime.gpu.kept_choices import KeptChoices, Key

_WARM, _TIMED = 2, 5
_LONGEST_PAUSE = 0.01
"""Seconds."""
_PAUSE = r"""
extern "C" __global__ void pause(const unsigned long long nanoseconds) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begun < nanoseconds);
}
"""
_HOLDING = 1024
"""Threads of a block that holds a multiprocessor: with them no product's block fits beside it."""
_HOLD = r"""
extern "C" __global__ void hold(volatile unsigned int* held) {
    if (threadIdx.x == 0) atomicAdd((unsigned int*)held, 1u);
    while (!held[1]) {}
    __syncthreads();
    if (threadIdx.x == 0) atomicSub((unsigned int*)held, 1u);
}
extern "C" __global__ void await_holders(volatile unsigned int* held, const unsigned int count) {
    while (held[0] < count) {}
}
extern "C" __global__ void free_holders(volatile unsigned int* held) {
    held[1] = 1;
    while (held[0]) {}
    held[1] = 0;
}
"""


class Choices:
    """Choices of one device by what they are made for. kept: those of earlier starts."""

    def __init__(self, device: Any, kept: KeptChoices) -> None:
        self._device = device
        self.kept = kept
        self._taken = 0
        self._held: Array = None
        self._found: dict[Key, int] = {}
        self._counts: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def __getitem__(self, key: Key) -> int:
        """Which of the ways was chosen."""
        return self._found[key]

    def choose(self, key: Key, count: int, seconds: Callable[[int], float]) -> None:
        """Take one of `count` ways. seconds: the time of one, infinite where it cannot be gone; it is not asked of a
        choice that an earlier start has made, nor where there is one way alone."""
        self._counts[key] = count
        known = 0 if count == 1 else self.kept.get(key, count)
        if known is None:
            known = min(range(count), key=lambda i: (seconds(i), i))
            self.kept.put(key, known)
        self._found[key] = known

    def fastest(self, key: Key, launches: Sequence[Launch]) -> Launch:
        """See `Device.fastest`."""
        if self._device.deterministic or len(launches) == 1:
            return launches[0]
        if key not in self:
            self.choose(key, len(launches), lambda i: self.seconds(launches[i]))
        return lambda: launches[self._found[key]]()

    def agree(self, comm: Any) -> None:
        """Take the choices of the lowest rank that has one for a key: ranks that compute the same must get the same
        bits. `comm` works on host arrays; every rank calls this."""
        if comm.rank == 0:
            self.kept.save()
        if comm.size == 1:
            return
        ranks = tuple(range(comm.size))
        mine = sorted((zlib.crc32(repr(key).encode()), key) for key in self._found)
        length = int(comm.all_reduce(np.array([len(mine)], np.int64), "max", ranks)[0])
        table = np.full((length, 2), -1, np.int64)
        for row, (name, key) in enumerate(mine):
            table[row] = name, self._found[key]
        first: dict[int, int] = {}
        for name, choice in comm.all_gather(table, ranks, 0).tolist():
            first.setdefault(name, choice)
        for name, key in mine:
            self._found[key] = min(first[name], self._counts[key] - 1)

    # Time

    @contextlib.contextmanager
    def beside(self, blocks: int) -> Generator[None]:
        """What is made in this context leaves so many multiprocessors to others."""
        before, self._taken = self._taken, blocks
        try:
            yield
        finally:
            self._taken = before

    @property
    def multiprocessors(self) -> int:
        """Those that a product made now may fill; 0: all."""
        return max(1, self._device.multiprocessors - self._taken) if self._taken else 0

    def seconds(self, launch: Launch) -> float:
        """What a launch takes, in the mean of a few.

        The GPU is paused until all of them wait for it. Else it would wait for the host, which may take longer to
        launch than the GPU to compute, and the time would be the host's.
        """
        for _ in range(_WARM):
            launch()
        if self._taken:
            return self._seconds_beside(launch)
        began = time.perf_counter()
        launch()
        pause = min(2 * _TIMED * (time.perf_counter() - began), _LONGEST_PAUSE)
        self._device.kernel(_PAUSE, "pause")(1, 1, (np.uint64(1e9 * pause),))
        begun = self._device.signal(timed=True)
        for _ in range(_TIMED):
            launch()
        ended = self._device.signal(timed=True)
        ended.synchronize()
        return self._device.milliseconds(begun, ended) / (1000 * _TIMED)

    def _seconds_beside(self, launch: Launch) -> float:
        """The same while as many multiprocessors as a collective takes are held by a kernel that does nothing."""
        device = self._device
        if self._held is None:
            self._held = device.zeros((2,), "uint32")
        hold, wait, free = (device.kernel(_HOLD, name) for name in ("hold", "await_holders", "free_holders"))
        device.load_kernels()
        before = device.signal()
        total = 0.0
        for _ in range(_TIMED):
            with device.stream("communication"):
                device.wait(before)
                hold(self._taken, _HOLDING, (self._held,))
            wait(1, 1, (self._held, np.uint32(self._taken)))
            begun = device.signal(timed=True)
            launch()
            ended = device.signal(timed=True)
            free(1, 1, (self._held,))
            before = device.signal()
            before.synchronize()
            device.synchronize()
            total += device.milliseconds(begun, ended)
        return total / (1000 * _TIMED)
