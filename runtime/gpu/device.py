"""One GPU for the runtime and the operators: its streams, its memory, and kernels compiled from CUDA C++."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

from mspc.ir.graph import FROM_HOST, TO_HOST
from mspc.ir.types import EIGHTS
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.device import Array, Kernel, Launch, Sliding, source_text
from mspc.runtime.gpu.choices import Choices, StoredChoices, file_of
from mspc.runtime.gpu.graph_nodes import Captured, Fills, Writers, conditional_nodes
from mspc.runtime.gpu.kernels import KernelCache
from mspc.runtime.gpu.launches import Asking
from mspc.runtime.gpu.matmul import Products, RowProducts, Unsupported
from mspc.runtime.gpu.peers import Mapping, Mappings

_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
"""CUDA's numbers for the directions of a copy."""
_ANY_DIRECTION = 4
"""CUDA's number for a copy whose direction follows from its two addresses."""
_LAZY_PEER_ACCESS = 1
"""CUDA's flag that enables access to the other GPU when its memory is opened."""
_WAYS = "3"
"""Version of the implementations, changed when mspc uses other ones or another order."""
_EIGHTS = frozenset(dtype.numpy.name for dtype in EIGHTS)
_SMALLEST_SCRATCH, _MAX_AHEAD = 1 << 20, 64 << 20


@functools.cache
def _array_type(dtype: np.dtype[Any]) -> Any:
    """Return the class of arrays of Float8, which CuPy lacks: bytes to CuPy, with their own element type for others."""
    return type(dtype.name, (cupy.ndarray,), {"dtype": dtype})


class GpuDevice:
    """See `mspc.ops.device.Device`. Raise cupy's CUDARuntimeError if there is no such GPU.

    index: of the GPU among those visible to this process. comm: communicator of graphs on it. deterministic: only
    algorithms that give the same bits in every run, and no choice by time. tf32: matmuls of Float32 may round their
    operands to TF32.

    compute, communication, reduction: streams of a step, the last for sums of gradients; copying: stream of its inputs.
    pool: contains all memory of a graph on the GPU. stop: Int32 array of one element on the GPU; if it is not 0,
    parameters are not updated. writers: last writers of the arrays of parameters. ended_loops: of every step, see
    `EndedLoops`.
    rejoined: number of calls of `rejoin`. capturing: launches become part of a CUDA graph. conditional: maker of
    conditional nodes of CUDA graphs; None if the driver does not support them.
    """

    def __init__(self, index: int = 0, comm: Any = None, deterministic: bool = False, tf32: bool = False) -> None:
        self.index = index
        self.xp = cupy
        self.comm: Any = OneRank() if comm is None else comm
        self.deterministic = deterministic
        self.tf32 = tf32
        cupy.cuda.Device(index).use()
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.name: str = properties["name"].decode()
        self.multiprocessors: int = properties["multiProcessorCount"]
        self.block_memory: int = properties["sharedMemPerBlockOptin"]
        self.warp_groups = (properties["major"], properties["minor"]) == (9, 0)
        self.compute = cupy.cuda.Stream(non_blocking=True)
        # NCCL's kernels take few multiprocessors; they should not queue after a matmul's many blocks.
        self.communication = cupy.cuda.Stream(non_blocking=True, priority=-1)
        self.reduction = cupy.cuda.Stream(non_blocking=True)
        self.copying = cupy.cuda.Stream(non_blocking=True)
        self._streams = {
            "compute": self.compute, "communication": self.communication, "reduction": self.reduction,
            "copy": self.copying, "messages": cupy.cuda.Stream(non_blocking=True, priority=-1),
            "products": cupy.cuda.Stream(non_blocking=True),
            **{name: cupy.cuda.Stream(non_blocking=True) for name in (TO_HOST, FROM_HOST)},
        }  # fmt: skip
        self.pool = cupy.cuda.MemoryPool()
        self._captured: list[Any] = []
        self.capturing = False
        self.conditional = conditional_nodes(cupy.cuda)
        self._aside: list[Any] = []
        self.rejoined = 0
        self.step = self.zeros((1,), "int64")
        self.stop = self.zeros((1,), "int32")
        self.progress: Any = None
        self.writers = Writers()
        self.ended_loops: weakref.WeakSet[Any] = weakref.WeakSet()
        self.choices = Choices(self, StoredChoices(None if deterministic else file_of(_machine(self.name))))
        self.products = Products(self)
        self.convolutions: Any = None
        self.workspaces: dict[str, int] = {}
        self._scratch: dict[int, Array] = {}
        self._retained: list[Array] = []
        self.kernels = KernelCache(cupy, index)
        self._mappings = Mappings(cupy.cuda.runtime.ipcCloseMemHandle)
        weakref.finalize(self, self._mappings.end_all).atexit = False  # process exit unmaps everything

    # Memory

    @property
    def memory_rate(self) -> float:
        """Bytes per second. A word of the bus moves at both edges of the memory's clock, which is in kHz."""
        limits = cupy.cuda.Device(self.index).attributes
        return 2000 * limits["MemoryClockRate"] * limits["GlobalMemoryBusWidth"] / 8

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array in the device's pool. Raise cupy's OutOfMemoryError."""
        with cupy.cuda.using_allocator(self.pool.malloc):
            if np.dtype(dtype).name not in _EIGHTS:
                return cupy.empty(shape, dtype)
            return cupy.empty(shape, np.uint8).view(_array_type(np.dtype(dtype)))

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros in the device's pool, visible to all streams."""
        array = self.empty(shape, dtype)
        # The fill must follow earlier uses of this memory, which the pool orders only within the current stream, and
        # precede writes of other streams, which do not wait for this one.
        stream = cupy.cuda.get_current_stream()
        array.data.memset_async(0, array.nbytes, stream)
        stream.synchronize()
        return array

    def view(self, memory: Array, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of that shape `offset` bytes into `memory`, an array of bytes."""
        if np.dtype(dtype).name not in _EIGHTS:
            return cupy.ndarray(shape, dtype, memptr=memory.data + offset)
        return cupy.ndarray(shape, np.uint8, memptr=memory.data + offset).view(_array_type(np.dtype(dtype)))

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised NumPy array in pinned memory, for asynchronous copies."""
        size = int(np.prod(shape, dtype=np.int64))
        memory = cupy.cuda.alloc_pinned_memory(max(1, size * np.dtype(dtype).itemsize))
        return np.frombuffer(memory, np.uint8, size * np.dtype(dtype).itemsize).view(dtype).reshape(shape)

    def send(self, host: Any, array: Array) -> None:
        """Copy a contiguous host array to the GPU, on the current stream; asynchronous only for pinned memory."""
        if array.nbytes:
            stream = cupy.cuda.get_current_stream().ptr
            cupy.cuda.runtime.memcpyAsync(array.data.ptr, host.ctypes.data, array.nbytes, _TO_DEVICE, stream)

    def receive(self, array: Array, host: Any) -> None:
        """Copy an array to the host, on the current stream; complete when the stream reaches this point."""
        if array.nbytes:
            stream = cupy.cuda.get_current_stream().ptr
            cupy.cuda.runtime.memcpyAsync(host.ctypes.data, array.data.ptr, array.nbytes, _TO_HOST, stream)

    def copy(self, source: Array, target: Array) -> None:
        """Copy bytes on the GPU, on the current stream."""
        if target.nbytes:
            stream = cupy.cuda.get_current_stream().ptr
            runtime = cupy.cuda.runtime
            runtime.memcpyAsync(target.data.ptr, source.data.ptr, target.nbytes, _ON_DEVICE, stream)

    def put(self, array: Array, place: int) -> None:
        """Copy an array to an address in the memory of any GPU."""
        stream = cupy.cuda.get_current_stream().ptr
        cupy.cuda.runtime.memcpyAsync(place, array.data.ptr, array.nbytes, _ANY_DIRECTION, stream)

    def exported(self, array: Array) -> tuple[bytes, int]:
        """Return (a handle by which other processes of this host can map the allocation of `array`, the array's offset
        in bytes). Raise an error of CUDA's or OSError if that is not possible."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        driver = ctypes.CDLL("libcuda.so.1")
        status = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(array.data.ptr))
        if status:
            raise OSError(f"CUDA knows no allocation at this address (error {status})")
        return bytes(cupy.cuda.runtime.ipcGetMemHandle(base.value)), array.data.ptr - base.value

    def imported(self, handle: bytes) -> Mapping:
        """Return the mapping of another process's allocation, mapped as long as the result is referenced. Raise CUDA's
        error if it cannot be mapped."""
        return self._mappings.mapping(handle, lambda h: cupy.cuda.runtime.ipcOpenMemHandle(h, _LAZY_PEER_ACCESS))

    def end_mappings(self) -> None:
        """Unmap memory of other processes that is no longer used."""
        if self._mappings.has_unreferenced:
            self.synchronize()
            self._mappings.unmap_unreferenced()

    def same(self, first: Array, second: Array) -> bool:
        """Return whether two arrays start at the same address."""
        return first.data.ptr == second.data.ptr

    def scratch(self, nbytes: int) -> Array:
        """Return bytes shared by all launches of one stream: the current stream when the launch is made."""
        stream = cupy.cuda.get_current_stream().ptr
        held = self._scratch.get(stream)
        if held is None or held.nbytes < nbytes:
            if held is not None:
                self._retained.append(held)  # earlier launches use its address
            size = max(_SMALLEST_SCRATCH, nbytes if held is None else nbytes + min(nbytes, _MAX_AHEAD))
            held = self._scratch[stream] = self.empty((size,), "uint8")
            self.workspaces["scratch"] = self.workspaces.get("scratch", 0) + size
        return held[:nbytes]

    # Order

    def stream(self, name: str) -> Any:
        """Return a context that selects a stream: "compute", "copy", or one of a step's side streams."""
        return self._streams[name]

    def current_stream(self) -> str:
        """Return the name of the current stream, or "" if it is not a step's."""
        current = cupy.cuda.get_current_stream().ptr
        return next((name for name, stream in self._streams.items() if stream.ptr == current), "")

    def on_side_stream(self, name: str, launch: Callable[[], None]) -> None:
        """Run a launch on the stream of this name, after the current stream's work so far; see `rejoin`."""
        begun = self.signal()
        if name not in self._streams:
            self._streams[name] = cupy.cuda.Stream(non_blocking=True)
        with self._streams[name]:
            self.wait(begun)
            launch()
            self._aside.append(self.signal())

    def rejoin(self) -> None:
        """Let the current stream wait for all launches made by `on_side_stream`."""
        while self._aside:
            self.wait(self._aside.pop())
        self.rejoined += 1

    def signal(self, timed: bool = False) -> Any:
        """Record and return an event on the current stream."""
        event = cupy.cuda.Event(disable_timing=not timed)
        event.record()
        return event

    def wait(self, event: Any) -> None:
        """Let the current stream wait for an event."""
        cupy.cuda.get_current_stream().wait_event(event)

    def milliseconds(self, first: Any, second: Any) -> float:
        """Return the milliseconds between two timed events that have occurred."""
        return float(cupy.cuda.get_elapsed_time(first, second))

    @functools.cached_property
    def _fills(self) -> Fills | None:
        with contextlib.suppress(OSError, AttributeError):
            return Fills(self.kernel(source_text("runtime/gpu/fill.cu"), "fill"))
        return None

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture the launches of `work` on the current stream, and on streams that wait for it, as one CUDA graph.
        Memory that CuPy allocates meanwhile is reserved for the replays."""
        fills = self._fills
        self.load_kernels()
        stream = cupy.cuda.get_current_stream()
        pool = cupy.cuda.MemoryPool()
        self._captured.append(pool)
        with cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture()
            self.capturing = True
            try:
                work()
            except BaseException:
                self._aside.clear()  # do not wait for the abandoned work
                with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                    stream.end_capture()  # an open capture would make all later work fail
                raise
            finally:
                self.capturing = False
            graph = cupy.cuda.runtime.streamEndCapture(stream.ptr)
        if fills is not None:
            fills.replace(graph)
        return Captured(cupy.cuda, graph, stream)

    # Work

    def kernel(self, source: str, name: str) -> Kernel:
        """See `Device.kernel`; compiled in parallel until the first launch."""
        return self.kernels.kernel(source, name)

    def set_node(self, node: Any) -> None:
        """Set the node that is named if a kernel of its launches cannot be compiled."""
        self.kernels.node = node

    def load_kernels(self) -> None:
        """Return when all requested kernels are loaded. A load may wait until the GPU is idle, so it must not follow a
        kernel that waits for later launches, here or on another rank."""
        self.kernels.wait()

    def matmul(self, x: Array, y: Array, out: Array, transpose_a: bool, transpose_b: bool, *,
               addend: Array | None = None, bias: Array | None = None, activation: str = "",
               before: Array | None = None) -> Launch | None:  # fmt: skip
        """See `Device.matmul`."""
        try:
            return self.products.launch(x, y, out, transpose_a, transpose_b, addend, bias, activation, before)
        except Unsupported:
            return None

    def scaled_matmul(self, x: Array, y: Array, x_scale: Array, y_scale: Array, out: Array, transpose_a: bool,
                      transpose_b: bool) -> Launch | None:  # fmt: skip
        """See `Device.scaled_matmul`."""
        try:
            return self.products.scaled(x, y, x_scale, y_scale, out, transpose_a, transpose_b)
        except Unsupported:
            return None

    def products_of_rows(self, x: Array, y: Array, out: Array, *, transpose_b: bool = False,
                         outer: bool = False) -> RowProducts | None:  # fmt: skip
        """See `Device.products_of_rows`."""
        try:
            return RowProducts(self.products, x, y, out, transpose_b, outer)
        except Unsupported:
            return None

    def host_query(self, arrays: Sequence[Array], run: Callable[..., None], ahead: Launch | None = None) -> Launch:
        """See `Device.host_query`."""
        return Asking(self, arrays, run, ahead)

    def beside(self, blocks: int) -> contextlib.AbstractContextManager[None]:
        """Return a context in which launches are made for running in parallel to kernels of `blocks` blocks."""
        return self.choices.beside(blocks)

    def attention(self, *arrays: Array, **options: Any) -> Launch | None:
        """See `Device.attention`."""
        from mspc.runtime.gpu.cudnn_attention import make_attention  # cuDNN is loaded for networks that need it

        return make_attention(self, *arrays, **options)

    def convolution(self, kind: str, image: Array, weight: Array, result: Array,
                    windows: Sequence[Sliding]) -> Launch | None:  # fmt: skip
        """See `Device.convolution`."""
        if self.convolutions is None:
            from mspc.runtime.gpu.convolution import Convolutions  # cuDNN is loaded for networks that need it

            self.convolutions = Convolutions(self)
        return self.convolutions.launch(kind, {"image": image, "weight": weight, "result": result}, windows)

    def fastest(self, kind: tuple[Any, ...], launches: Sequence[Launch]) -> Launch:
        """See `Device.fastest`; all ranks take the same one."""
        return self.choices.fastest(kind, launches)

    def synchronize(self) -> None:
        """Wait for the streams of a step, and for earlier work on the default stream."""
        cupy.cuda.Stream.null.synchronize()
        for name in (TO_HOST, FROM_HOST):
            self._streams[name].synchronize()
        self.reduction.synchronize()
        self.communication.synchronize()
        self.compute.synchronize()


def _machine(name: str) -> list[str]:
    """Return the properties that the choice of implementations depends on."""
    versions = [_WAYS, str(cupy.cuda.runtime.driverGetVersion()), cupy.__version__]
    for package in ("nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(importlib.metadata.version(package))
    return [name, *versions]
