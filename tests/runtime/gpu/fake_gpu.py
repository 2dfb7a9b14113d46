"""A GPU and its NCCL played by NumPy, for what needs none: arrays have addresses, moves are done element by element,
and collectives go through the ranks of a simulation. Calls are written down, to be looked at."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from mspc.runtime.comm.local import LocalComm

NUMPY_TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"]
OPS = ["sum", "prod", "max", "min"]


class FakeArray(np.ndarray):
    """An array with an address where CuPy's has it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


def fake(array: Any) -> FakeArray:
    """The array as if it were on the GPU: aligned as CuPy's are."""
    array = np.asarray(array)
    raw = np.zeros(array.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    found = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape).view(FakeArray)
    found[...] = array
    return found


def _copy(target: int, source: int, size: int, kind: int, stream: int) -> None:
    assert (kind, stream) == (3, 7)
    ctypes.memmove(target, source, size)


def fake_xp() -> Any:
    """The functions that the runtime asks of CuPy."""
    return SimpleNamespace(
        empty=lambda shape, dtype: fake(np.full(shape, 3, dtype)),
        zeros=lambda shape, dtype: fake(np.zeros(shape, dtype)),
        empty_like=lambda array: fake(np.full(array.shape, 3, array.dtype)),
        ascontiguousarray=lambda array: fake(np.ascontiguousarray(array)),
        concatenate=lambda arrays, axis: fake(np.concatenate(arrays, axis)),
        stack=lambda arrays: fake(np.stack(arrays)),
        split=np.split,
        add=np.add, multiply=np.multiply, maximum=np.maximum, minimum=np.minimum,
        cuda=SimpleNamespace(
            get_current_stream=lambda: SimpleNamespace(ptr=7), runtime=SimpleNamespace(memcpyAsync=_copy)
        ),
        __name__="fake",
    )  # fmt: skip


class FakeNccl:
    """CuPy's module for NCCL on one simulated rank."""

    available = True

    def __init__(self, comm: LocalComm) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.comm = LocalComm(comm.world, comm.rank, channel=9)
        self.waiting: list[Any] | None = None
        self.error: Exception | None = None
        self.joining: tuple[int, ...] = ()

    def get_unique_id(self) -> bytes:
        return bytes([self.comm.rank, 255] * 64)

    def groupStart(self) -> None:
        self.log.append(("start",))
        self.waiting = []

    def groupEnd(self) -> None:
        waiting, self.waiting = self.waiting or [], None
        self.log.append(("end", len(waiting)))
        messages = [call for call in waiting if call[0] in ("send", "recv")]
        for call in waiting:
            if call[0] not in ("send", "recv"):
                self.run(*call)
        self.exchange(messages)

    def exchange(self, calls: list[Any]) -> None:
        sends = [(rank, array) for kind, rank, array in calls if kind == "send"]
        receives = [(rank, array.shape, array.dtype) for kind, rank, array in calls if kind == "recv"]
        landed = [array for kind, _, array in calls if kind == "recv"]
        for array, found in zip(landed, self.comm.exchange(sends, receives), strict=True):
            array[...] = found

    def call(self, *call: Any) -> None:
        self.log.append((call[0], *(a for a in call[1:] if not isinstance(a, np.ndarray))))
        if self.waiting is not None:
            self.waiting.append(call)
        elif call[0] in ("send", "recv"):
            self.exchange([call])
        else:
            self.run(*call)

    def run(self, kind: str, ranks: Any, source: Any, target: Any, extra: Any) -> None:
        comm = self.comm
        if kind == "allReduce":
            target[...] = comm.all_reduce(source, extra, ranks)
        elif kind == "allGather":
            target[...] = comm.all_gather(source, ranks)
        elif kind == "reduceScatter":
            target[...] = comm.reduce_scatter(source, extra, ranks)
        elif kind == "broadcast":
            target[...] = comm.broadcast(source, ranks[extra], ranks)

    def NcclCommunicator(self, count: int, identity: bytes, number: int) -> Any:
        assert len(identity) == 128
        assert identity[1] == 255, "the identity must be that of the group's first rank"
        self.log.append(("join", count, identity[0], number))
        assert (len(self.joining), self.joining.index(self.comm.rank)) == (count, number)
        self.comm.barrier(self.joining)
        return FakeGroup(self, self.joining)


class FakeGroup:
    """A communicator: every call gives addresses and counts, as C does."""

    def __init__(self, nccl: FakeNccl, ranks: Any) -> None:
        self.nccl, self.ranks = nccl, ranks

    def allReduce(self, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        assert stream == 7
        self.nccl.call("allReduce", self.ranks, view(source, count, kind), view(target, count, kind), OPS[op])

    def allGather(self, source: int, target: int, count: int, kind: int, stream: int) -> None:
        whole = view(target, count * len(self.ranks), kind)
        self.nccl.call("allGather", self.ranks, view(source, count, kind), whole, None)

    def reduceScatter(self, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        whole = view(source, count * len(self.ranks), kind)
        self.nccl.call("reduceScatter", self.ranks, whole, view(target, count, kind), OPS[op])

    def broadcast(self, source: int, target: int, count: int, kind: int, root: int, stream: int) -> None:
        self.nccl.call("broadcast", self.ranks, view(source, count, kind), view(target, count, kind), root)

    def send(self, source: int, count: int, kind: int, peer: int, stream: int) -> None:
        self.nccl.call("send", self.ranks[peer], view(source, count, kind))

    def recv(self, target: int, count: int, kind: int, peer: int, stream: int) -> None:
        self.nccl.call("recv", self.ranks[peer], view(target, count, kind))

    def check_async_error(self) -> None:
        if self.nccl.error is not None:
            raise self.nccl.error


def view(address: int, count: int, kind: int) -> np.ndarray:
    """The elements at an address."""
    import ml_dtypes

    name = NUMPY_TYPES[kind]
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, np.uint8).view(dtype)


class FakeDevice:
    """A device for launches that move elements and communicate."""

    multiprocessors = 2
    deterministic = tf32 = False
    rejoined = 0

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm
        self.xp = fake_xp()
        self.step = fake(np.ones(1, np.int64))
        self.sources: list[str] = []
        self.scratches: list[FakeArray] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> FakeArray:
        return fake(np.zeros(shape, dtype))

    def on_side_stream(self, name: str, launch: Any) -> None:
        launch()

    def scratch(self, nbytes: int) -> FakeArray:
        self.scratches.append(fake(np.full(nbytes, 77, np.uint8)))
        return self.scratches[-1]


def fake_move(device: FakeDevice, name: str, moves: Any) -> Any:
    """In place of `ops.cuda_move.move`: every move as its definition says it."""

    def launch() -> None:
        for each in moves:
            source, target = each.source.reshape(-1), each.target.reshape(-1)
            for index in np.ndindex(*each.sizes):
                start = each.source_offset + sum(i * s for i, s in zip(index, each.source_strides, strict=True))
                end = each.target_offset + sum(i * s for i, s in zip(index, each.target_strides, strict=True))
                target[end] = source[start]

    return launch
