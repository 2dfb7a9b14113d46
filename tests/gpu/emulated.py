"""The GPU runtime without a GPU: what `GpuDevice` offers, played by NumPy and by kernels that g++ compiled.

Streams are one: work is done when it is asked for. Memory that was not written, the host's pinned memory too, holds
NaN, so that what reads too early or too much shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ops.collective.one_rank import OneRank
from mspc.ops.convolution.convolve import convolve, input_gradient, weight_gradient
from mspc.ops.convolution.window import Window
from mspc.runtime.gpu.choices import Choices, StoredChoices
from mspc.runtime.gpu.graph_nodes import Writers
from mspc.runtime.gpu.launches import Asking
from tests.ops.cuda.cuda_emulator import Emulator, aligned


class Event:
    """device: where what waits may not be part of what is captured."""

    def __init__(self, device: EmulatedGpu | None = None) -> None:
        self._device = device

    @property
    def done(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        assert self._device is None or not self._device.replaying, "the host waits within a CUDA graph"


class PlayedNodes:
    """See `mspc.runtime.gpu.graph_nodes.ConditionalNodes`. count: how often one was met in a graph."""

    has_choices = True

    def __init__(self) -> None:
        self.count = 0

    def loop(self, decide: Callable[[Any], None], turn: Callable[[], None]) -> None:
        self.count += 1
        while self._decided(decide):
            turn()

    def choice(self, decide: Callable[[Any], None], ways: Sequence[Callable[[], None]]) -> None:
        self.count += 1
        first, second = ways
        way = first if self._decided(decide) else second
        way()

    @staticmethod
    def _decided(decide: Callable[[Any], None]) -> bool:
        value = np.full(1, 77, np.uint32)
        decide(np.uint64(value.ctypes.data))
        return bool(value[0])


class EmulatedGpu(Emulator):
    """See `mspc.runtime.gpu.device.GpuDevice`. made: names of the kernels asked for."""

    index = 0
    name, memory_rate = "emulated", 1e12
    comm: Any
    progress: Any = None

    def __init__(self, folder: Path, comm: Any = None) -> None:
        super().__init__(folder, step=0)
        self.comm = OneRank() if comm is None else comm
        self.choices = Choices(self, StoredChoices(None))
        self.writers = Writers()
        self.ended_loops: weakref.WeakSet[Any] = weakref.WeakSet()
        self.workspaces: dict[str, int] = {}
        self.captures = self.rejoined = 0
        self.replaying = False
        self.conditional: Any = PlayedNodes()
        self._room: list[Any] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        return aligned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize).view(dtype).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = self.empty(shape, dtype)
        array[...] = 0
        return array

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return memory[offset : offset + size].view(dtype).reshape(shape)

    def load_kernels(self) -> None: ...

    def set_node(self, node: Any) -> None: ...

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.empty(shape, dtype)

    def send(self, host: Any, array: Any) -> None:
        array[...] = host

    def receive(self, array: Any, host: Any) -> None:
        host[...] = array

    def stream(self, name: str) -> Any:
        assert name in ("compute", "communication", "reduction", "messages", "copy", "to_host", "from_host")
        return contextlib.nullcontext()

    def put(self, array: Any, place: int) -> None:
        ctypes.memmove(place, array.ctypes.data, array.nbytes)

    def beside(self, blocks: int) -> Any:
        return contextlib.nullcontext()

    def current_stream(self) -> str:
        return "compute"

    def on_side_stream(self, name: str, launch: Callable[[], None]) -> None:
        launch()

    def rejoin(self) -> None:
        self.rejoined += 1

    def signal(self, timed: bool = False) -> Any:
        return Event(self)

    def wait(self, event: Any) -> None: ...

    def milliseconds(self, first: Any, second: Any) -> float:
        return 0.0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1

        def replay() -> None:
            assert not self.replaying, "a CUDA graph within another one"
            self.replaying = True
            try:
                work()
            finally:
                self.replaying = False

        return replay

    @property
    def capturing(self) -> bool:
        """A graph is made anew at every replay."""
        return self.replaying

    def synchronize(self) -> None: ...

    def fastest(self, kind: tuple[Any, ...], launches: Any) -> Any:
        return launches[-1]

    def attention(self, *arrays: Any, **options: Any) -> Any:
        return None

    def host_query(self, arrays: Any, run: Callable[..., None], ahead: Any = None) -> Any:
        return Asking(self, arrays, run, ahead)

    def convolution(self, kind: str, image: Any, weight: Any, result: Any, windows: Any) -> Any:
        along = [Window(w, s.stride, s.dilation, s.before, s.after)
                 for w, s in zip(weight.shape[2:], windows, strict=True)]  # fmt: skip
        groups = image.shape[1] // weight.shape[1]

        def launch() -> None:
            if kind == "forward":
                convolve(np, image, weight, along, result.shape[2:], groups, result)
                return
            made = np.empty(image.shape if kind == "image" else weight.shape, image.dtype)
            if kind == "image":
                image[...] = input_gradient(np, result, weight, along, groups, made)
            else:
                weight[...] = weight_gradient(np, result, image, along, groups, made)

        return launch
