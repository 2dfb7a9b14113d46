"""Collectives between GPUs through NCCL, by CuPy's bindings. MPI only exchanges the ids of groups.

All work is enqueued on CuPy's current stream and may be captured into a CUDA graph: nothing blocks, and the methods
that write into arrays allocate nothing. Every group has a communicator, made once, in the same order on all ranks.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ExecutionError, ranks_listed
from mspc.ir.graph import Graph
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import WORDS, is_small
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.device import Launch, RankSum
from mspc.runtime.comm.interface import Array, Ranks
from mspc.runtime.gpu.peers import Mailboxes, PeerCollectives, PeerMemory

# Wrapper of CuPy's bindings of NCCL: its numbers, grouped calls, and error texts.


TYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
          "float64": 8, "bfloat16": 9}  # fmt: skip
"""NCCL's numbers of the element types that it reduces."""
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
_BOOL_OPS = {"sum": "max", "max": "max", "prod": "min", "min": "min"}
"""Booleans are bytes 0 and 1: their sum is "or", their product "and"."""
BYTE = 1
IN_PROGRESS, _ERRORS = 7, {6: "another rank has gone, or the way to it is broken"}
"""NCCL states without a name in CuPy."""


class Calls:
    """Grouped NCCL calls, with errors that name the group."""

    def __init__(self, library: Any, ranks: Ranks) -> None:
        self._nccl = library
        self._ranks = ranks

    def __enter__(self) -> None:
        if self._nccl is not None:
            self._nccl.groupStart()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if self._nccl is not None:
                self._nccl.groupEnd()
        except Exception as ended:
            error = error or ended
        if isinstance(error, Exception) and not isinstance(error, ExecutionError):
            raise ExecutionError(f"NCCL fails between {ranks_listed(self._ranks)}: {text_of(error)}") from error


def load_nccl(xp: Any) -> Any:
    """Return CuPy's module for NCCL. Raise ExecutionError if this CuPy has none, or finds no library."""
    try:
        found = importlib.import_module(f"{xp.__name__}.cuda.nccl")
    except ImportError as error:
        raise ExecutionError(f"CuPy cannot load NCCL: {error}") from error
    if not getattr(found, "available", True):
        raise ExecutionError("CuPy finds no NCCL library")
    return found


def combining(dtype: Any, op: str) -> tuple[int, int]:
    """Return NCCL's numbers for an element type and its reduction."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return BYTE, OPS[_BOOL_OPS[op]]
    return TYPES[dtype.name], OPS[op]


def status_of(error: Exception) -> int:
    """Return NCCL's number of an error. CuPy raises a KeyError with the number if it has no name for it."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return int(getattr(error, "status", -1))


def text_of(error: Exception) -> str:
    status = status_of(error)
    if isinstance(error, KeyError):
        return _ERRORS.get(status, f"error {status}")
    return str(error) or type(error).__name__


# Groups of ranks in which a graph communicates, each with a communicator of its own.


Key = tuple[Ranks, int]
"""A group: its ranks in order, and -1 or the tag of explicit messages between two ranks."""


class GroupCommunicator:
    """Communicator of a group; `of` maps a rank to its index in it."""

    def __init__(self, ranks: Ranks, comm: Any) -> None:
        self.ranks = ranks
        self.comm = comm
        self.of = {rank: number for number, rank in enumerate(ranks)}


def groups_of(graph: Graph, rank: int) -> list[Key]:
    """Return the groups in which the graph of `rank` communicates, ascending; messages between stages create theirs
    when needed (`stage_messages`)."""
    collectives = (node for node in graph.all_nodes() if isinstance(node.op, Collective))
    found = {n.op.channel(rank) for n in collectives if not isinstance(n.op, SendToStage | ReceiveFromStage)}
    return sorted(key for key in found if len(set(key[0])) > 1)


_ON_DEVICE = 3
"""CUDA's number for a copy on the GPU."""
_ID_BYTES = 128

class NcclComm:
    """Communicator of this rank's GPU, see `runtime.comm.Communicator` and `ops.comm_launch.DeviceCommunicator`. xp:
    CuPy. host: communicator of arrays on the host; with one rank NCCL is not needed. Every method raises ExecutionError
    with the ranks of the group if NCCL fails."""

    def __init__(self, xp: Any, host: Any) -> None:
        self.xp = xp
        self.host = host
        self.rank: int = host.rank
        self.size: int = host.size
        self._groups: dict[Key, GroupCommunicator] = {}
        self._boxes = Mailboxes()
        self.mark = (0, 0)
        """Address and value by which a collective between peers reports its place to the host; see
        `GpuProgress.before`."""
        self.device: Any = None
        self._memory: Any = None
        self._peers: PeerCollectives | None = None
        self._byte: Array = None
        self._nccl: Any = None

    # Groups

    def prepare(self, groups: Iterable[Key], together: bool) -> None:
        """Create the communicators of this rank's groups; the members call this together.

        together: all ranks call it, and groups requested by other ranks only are created, too.
        """
        mine = {key for key in groups if len(key[0]) > 1}
        if together and self.size > 1:
            mine = {key for key in self._union(mine) if self.rank in key[0]}
        for key in sorted(mine - self._groups.keys()):  # the same order on all ranks avoids a deadlock
            self._group(*key)
            if key[1] < 0 and self.device is not None:
                if self._peers is None:
                    self._peers = PeerCollectives(self.device, self.peer_memory, self)
                self._boxes.open(self.device, self.peer_memory, key[0], key[0].index(self.rank))

    @property
    def peer_memory(self) -> PeerMemory | None:
        """Access to arrays of other ranks of this host; None before there is a device."""
        if self._memory is None and self.device is not None:
            self._memory = PeerMemory(self.device, self.host)
        return self._memory

    def prepare_for(self, graph: Graph, together: bool) -> None:
        """Create the communicators of a graph's groups."""
        self.prepare(groups_of(graph, self.rank), together)

    def _union(self, mine: set[Key]) -> set[Key]:
        text = ";".join(f"{tag}:{','.join(map(str, ranks))}" for ranks, tag in sorted(mine)).encode()
        everyone = tuple(range(self.size))
        length = int(self.host.all_reduce(np.array([len(text)], np.int64), "max", everyone)[0])
        padded = np.frombuffer(text.ljust(length), np.uint8)
        found: set[Key] = set()
        for row in self.host.all_gather(padded[None], everyone, 0) if length else ():
            for entry in filter(None, bytes(row).decode().strip().split(";")):
                tag, _, ranks = entry.partition(":")
                found.add((tuple(map(int, ranks.split(","))), int(tag)))
        return found

    def _group(self, ranks: Ranks, tag: int = -1) -> GroupCommunicator:
        found = self._groups.get((ranks, tag))
        if found is None:
            nccl = self._library()
            root = ranks[0]
            identity = np.zeros(_ID_BYTES, np.uint8)
            if self.rank == root:
                identity[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
            # Only the members of the group take part.
            identity = self.host.broadcast(identity, root, tuple(sorted(ranks)))
            try:
                comm = nccl.NcclCommunicator(len(ranks), identity.tobytes(), ranks.index(self.rank))
            except Exception as error:
                raise ExecutionError(f"NCCL cannot join {ranks_listed(ranks)}: {text_of(error)}") from error
            # NCCL waits until the CUDA graphs that use a communicator are destroyed, possibly forever, because Python's
            # order of destruction at exit is unknown. Process exit frees all of them.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(comm))
            found = self._groups[ranks, tag] = GroupCommunicator(ranks, comm)
            if tag >= 0:
                self._introduce(found)
        return found

    def _introduce(self, pair: GroupCommunicator) -> None:
        """Send one byte from the first rank to the second: at the first message both ranks wait for each other on the
        host, and two ranks that both send before they receive would wait forever."""
        first = self.rank == pair.ranks[0]
        with self._calls(pair, 1):
            (pair.comm.send if first else pair.comm.recv)(self._a_byte().data.ptr, 1, BYTE, int(first), self._stream())

    def _a_byte(self) -> Array:
        if self._byte is None:
            self._byte = self.xp.zeros((1,), "uint8")
        return self._byte

    def _library(self) -> Any:
        if self._nccl is None:
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast memory is not safe to use on every host
            # NCCL uses 24 blocks between two GPUs over NVLink; exposed reductions are faster with more.
            os.environ.setdefault("NCCL_MIN_CTAS", "32")
            self._nccl = load_nccl(self.xp)
        return self._nccl

    def check(self) -> None:
        """Check for asynchronous NCCL errors; called during the wait for a step."""
        for group in self._groups.values():
            try:
                group.comm.check_async_error()
            except Exception as error:
                if status_of(error) == IN_PROGRESS:
                    continue
                raise ExecutionError(f"NCCL fails between {ranks_listed(group.ranks)}: {text_of(error)}") from error

    # Into arrays that exist

    def combines(self, dtype: Any, op: str) -> bool:
        """Return whether NCCL supports reduction `op` for this element type."""
        return op in OPS and (np.dtype(dtype).name in TYPES or np.dtype(dtype) == np.bool_)

    def all_reduce_into(self, arrays: Sequence[Array], outs: Sequence[Array], op: str, ranks: Ranks) -> None:
        """Reduce arrays of one element type into the corresponding `outs`, each of which may be the array itself, as
        one NCCL group."""
        kind, number = combining(arrays[0].dtype, op)
        if len(ranks) == 1:
            for array, out in zip(arrays, outs, strict=True):
                self._copy(array, out)
            return
        group, stream = self._group(tuple(sorted(ranks))), self._stream()
        if self._boxes.exchange(arrays, outs, group.ranks, [a.nbytes for a in arrays], False, op, self.mark):
            return
        # Not merged by address: all ranks must make the same calls, whatever the addresses of their arrays.
        with self._calls(group, len(arrays)):
            for array, out in zip(arrays, outs, strict=True):
                group.comm.allReduce(array.data.ptr, out.data.ptr, array.size, kind, number, stream)

    def all_gather_into(self, array: Array, out: Array, ranks: Ranks) -> None:
        """Concatenate the members' arrays into `out`."""
        if len(ranks) == 1:
            self._copy(array, out)
            return
        group = self._group(ranks)
        if self._boxes.exchange([array], [out], ranks, [array.nbytes], False, "", self.mark):
            return
        with self._calls(group, 1):
            group.comm.allGather(array.data.ptr, out.data.ptr, array.nbytes, BYTE, self._stream())

    def reduce_scatter_into(self, array: Array, out: Array, op: str, ranks: Ranks) -> None:
        """Reduce-scatter `array`, which consists of one part per member, into `out`."""
        kind, number = combining(array.dtype, op)
        if len(ranks) == 1:
            self._copy(array, out)
            return
        group = self._group(ranks)
        if self._boxes.exchange([array], [out], ranks, [out.nbytes], True, op, self.mark):
            return
        with self._calls(group, 1):
            group.comm.reduceScatter(array.data.ptr, out.data.ptr, out.size, kind, number, self._stream())

    def quick(self, nodes: Sequence[Any]) -> bool:
        """Return whether all these collectives go through mailboxes."""
        return all(is_small(node) and self._boxes.has(node.op.channel(self.rank)[0]) for node in nodes)

    def direct(self, name: str, array: Array, out: Array, op: str, ranks: Ranks) -> Launch | None:
        """See `DeviceCommunicator`."""
        ranks = tuple(sorted(ranks)) if name == "AllReduce" else ranks
        if self._peers is None or not self._boxes.has(ranks) or min(array.nbytes, out.nbytes) <= 4 * WORDS:
            return None
        return self._peers.launch(name, array, out, op, ranks, ranks.index(self.rank))

    def partial_sums(self, array: Array, ranks: Ranks) -> RankSum | None:
        """See `DeviceCommunicator`."""
        ranks = tuple(sorted(ranks))
        if self._peers is None or not self._boxes.has(ranks):
            return None
        return self._peers.partial_sums(array, ranks, ranks.index(self.rank))

    def all_agree(self, able: bool, ranks: Ranks) -> bool:
        """See `DeviceCommunicator`."""
        return bool(self.host.all_reduce(np.array([able], np.int64), "min", tuple(sorted(ranks)))[0])

    def all_to_all_into(self, array: Array, out: Array, ranks: Ranks) -> None:
        """Exchange parts: `array` has one part for every member, `out` receives one from every member."""
        if len(ranks) == 1:
            self._copy(array, out)
            return
        group, stream = self._group(ranks), self._stream()
        part = array.nbytes // len(ranks)
        with self._calls(group, 2):
            for number in range(len(ranks)):
                group.comm.send(array.data.ptr + number * part, part, BYTE, number, stream)
                group.comm.recv(out.data.ptr + number * part, part, BYTE, number, stream)

    def exchange_into(
        self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]], ranks: Ranks | None = None
    ) -> None:
        """Exchange arrays, see `Communicator`. Non-contiguous arrays are packed, which allocates. ranks: the
        participating group, by default all ranks."""
        xp = self.xp
        packed = [(rank, xp.ascontiguousarray(array)) for rank, array in sends]
        landing = [(r, a if a.flags.c_contiguous else xp.empty(a.shape, a.dtype)) for r, a in receives]
        own = ([a for r, a in packed if r == self.rank], [a for r, a in landing if r == self.rank])
        for array, out in zip(*own, strict=True):
            self._copy(array, out)
        others = [(r, a) for r, a in packed if r != self.rank], [(r, a) for r, a in landing if r != self.rank]
        if others[0] or others[1]:
            group, stream = self._group(tuple(sorted(ranks or range(self.size)))), self._stream()
            with self._calls(group, 2):
                for rank, array in others[0]:
                    group.comm.send(array.data.ptr, array.nbytes, BYTE, group.of[rank], stream)
                for rank, array in others[1]:
                    group.comm.recv(array.data.ptr, array.nbytes, BYTE, group.of[rank], stream)
        for (_, array), (_, landed) in zip(receives, landing, strict=True):
            if landed is not array:
                array[...] = landed

    def exchange_counts(self, numbers: Any, ranks: Ranks) -> Any:
        """See `DeviceCommunicator`."""
        return self.host.all_to_all(numbers, ranks, 0, 0) if len(ranks) > 1 else numbers

    def broadcast_into(self, arrays: Sequence[Array], outs: Sequence[Array], root: int, ranks: Ranks) -> None:
        """Copy every array of `root` into the corresponding one of `outs`."""
        if len(ranks) == 1:
            for array, out in zip(arrays, outs, strict=True):
                self._copy(array, out)
            return
        group, stream = self._group(tuple(sorted(ranks))), self._stream()
        with self._calls(group, len(arrays)):
            for array, out in zip(arrays, outs, strict=True):
                place = group.of[root]
                group.comm.broadcast(array.data.ptr, out.data.ptr, out.nbytes, BYTE, place, stream)

    def send(self, array: Array, rank: int, tag: int = 0) -> None:
        """Send with a communicator per tag and direction, because NCCL serialises the calls of a communicator and the
        order of tags is free."""
        array = self.xp.ascontiguousarray(array)
        group = self._pair(self.rank, rank, tag)
        with self._calls(group, 1):
            group.comm.send(array.data.ptr, array.nbytes, BYTE, group.of[rank], self._stream())

    def receive_into(self, out: Array, rank: int, tag: int = 0) -> None:
        """Receive the array that `rank` sends with this tag."""
        group = self._pair(rank, self.rank, tag)
        with self._calls(group, 1):
            group.comm.recv(out.data.ptr, out.nbytes, BYTE, group.of[rank], self._stream())

    def barrier(self, ranks: Ranks) -> None:
        """Let later work on the stream start once every member has called this."""
        if len(ranks) > 1:
            byte = self._a_byte()
            self.all_reduce_into((byte,), (byte,), "max", ranks)

    # Into fresh arrays

    def all_reduce(self, array: Array, op: str, ranks: Ranks) -> Array:
        array = self._contiguous(array)
        if not self.combines(array.dtype, op):
            return self._combined(self.all_gather(array[None], ranks, 0), op)
        out = self.xp.empty_like(array)
        self.all_reduce_into((array,), (out,), op, ranks)
        return out

    def all_gather(self, array: Array, ranks: Ranks, axis: int = 0) -> Array:
        array = self._contiguous(array)
        out = self.xp.empty((len(ranks), *array.shape), array.dtype)
        self.all_gather_into(array, out, ranks)
        if axis:
            return self.xp.concatenate(list(out), axis)
        return out.reshape(math.prod(out.shape[:2]), *array.shape[1:])

    def reduce_scatter(self, array: Array, op: str, ranks: Ranks, axis: int = 0) -> Array:
        parts = self._parts(array, len(ranks), axis)
        if not self.combines(array.dtype, op):
            found = self.xp.empty_like(parts)
            self.all_to_all_into(parts, found, ranks)
            return self._combined(found, op)
        out = self.xp.empty(parts.shape[1:], parts.dtype)
        self.reduce_scatter_into(parts, out, op, ranks)
        return out

    def all_to_all(self, array: Array, ranks: Ranks, split_dim: int, concat_dim: int) -> Array:
        parts = self._parts(array, len(ranks), split_dim)
        out = self.xp.empty_like(parts)
        self.all_to_all_into(parts, out, ranks)
        return self.xp.concatenate(list(out), concat_dim)

    def exchange(
        self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, tuple[int, ...], Any]]
    ) -> list[Array]:
        found = [self.xp.empty(shape, dtype) for _, shape, dtype in receives]
        self.exchange_into(sends, [(rank, array) for (rank, _, _), array in zip(receives, found, strict=True)])
        return found

    def broadcast(self, array: Array, root: int, ranks: Ranks) -> Array:
        array = self._contiguous(array)
        out = self.xp.empty_like(array)
        self.broadcast_into((array,), (out,), root, ranks)
        return out

    def receive(self, rank: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        out = self.xp.empty(shape, dtype)
        self.receive_into(out, rank, tag)
        return out

    # Parts

    def _calls(self, group: GroupCommunicator, count: int) -> Calls:
        return Calls(self._library() if count > 1 else None, group.ranks)

    def _pair(self, source: int, target: int, tag: int) -> GroupCommunicator:
        other = target if source == self.rank else source
        if not 0 <= other < self.size or source == target:
            raise ExecutionError(f"rank {self.rank} has no rank {other} to send to or receive from")
        return self._group((source, target), tag)

    def _stream(self) -> int:
        return self.xp.cuda.get_current_stream().ptr

    def _copy(self, array: Array, out: Array) -> None:
        if out.nbytes and array.data.ptr != out.data.ptr:
            runtime = self.xp.cuda.runtime
            runtime.memcpyAsync(out.data.ptr, array.data.ptr, out.nbytes, _ON_DEVICE, self._stream())

    def _contiguous(self, array: Array) -> Array:
        return self.xp.ascontiguousarray(array).reshape(array.shape)

    def _parts(self, array: Array, count: int, axis: int) -> Array:
        if array.shape[axis] % count:
            raise ValueError(f"dimension {axis} of shape {array.shape} does not divide by {count} ranks")
        return self.xp.stack(self.xp.split(array, count, axis))

    def _combined(self, parts: Array, op: str) -> Array:
        """Reduce element types that NCCL does not support, in rank order."""
        function = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}[op]
        total = parts[0].copy()
        for part in parts[1:]:
            getattr(self.xp, function)(total, part, out=total)
        return total
