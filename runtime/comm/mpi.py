"""Communicator that runs collectives through MPI (mpi4py, host buffers).

Data are sent as bytes and combined here in the order of the group's ranks: MPI's own reductions may use another order
for every number of ranks and do not support bfloat16.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from mspc.ops.cpu.gemm import limit_blas
from mspc.runtime.comm.interface import GRAPH_CHANNELS, SIDE_CHANNEL_OFFSET, Array, Exchanging, Ranks, combine, pieces
from mspc.runtime.comm.mpi_library import MPI, end_mpi, start_mpi
from mspc.runtime.faults.record import group_of
from mspc.runtime.faults.watch import JobWatch

# Progress of messages while their rank computes.
#
# MPI transfers a long message in steps, for which both sides have to call MPI. If ranks of a host cannot read each
# other's memory, as in many containers, and between hosts, a receiver would wait until the sender's next call.


POLL_SECONDS = 0.0002
"""Seconds between two polls of the messages. A message is delayed by a few of them; a rank that computes meanwhile
loses one or two percent of its time."""


class MessagesInFlight:
    """Messages of a process that may not have arrived. A thread calls MPI until all have."""

    def __init__(self) -> None:
        self._messages: list[tuple[Any, Any]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, request: Any, carried: Any) -> None:
        """Add a message passed to MPI. carried: the memory it is read from, kept alive until arrival."""
        if request.Test():
            return
        with self._changed:
            self._messages.append((request, carried))
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._drive, name="mspc-messages", daemon=True)
                self._thread.start()
                atexit.register(self.end)
            self._changed.notify()

    def end(self) -> None:
        """Stop calling MPI, which is about to end and completes the remaining messages itself."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _drive(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._messages or self._ended)
                if self._ended:
                    return
                looked_at = list(self._messages)
            try:
                arrived = {id(message) for message in looked_at if message[0].Test()}
            except MPI.Exception:
                return  # a rank has died; the next call of this rank reports it
            with self._changed:
                self._messages = [message for message in self._messages if id(message) not in arrived]
            time.sleep(POLL_SECONDS)


SMALL = 8192
"""Maximum bytes for which an all-reduce gathers all arrays in one message instead of scattering the sum first."""

_EXCHANGE_TAG = 2**14
_EXCHANGE_TAGS = 2**14
"""Number of tags that distinguish exchanges of graphs, by channel modulo this number."""
_CREATION_TAGS = 2**20
"""Number of tags that distinguish groups while they are created, so that mismatched ranks wait instead of mixing groups
up."""
_BY_TAG = 2**32
"""In place of a channel, for messages with a tag of the script's own."""


class MpiComm(Exchanging):
    """Communicator of this process. A group gets an MPI communicator at its first use, created by its members only, in
    the order of first use, so that no rank outside a group can delay it.

    channel: separates graphs from one another and from communication outside graphs: ranks in different graphs wait for
    each other instead of mixing their data. watch: notified when this rank waits for others, so that a rank that waits
    forever can be named. sent: the messages in flight of all communicators of this process.
    """

    def __init__(self, watch: JobWatch | None = None, channel: int = 0, sent: MessagesInFlight | None = None) -> None:
        limit_blas()
        start_mpi()
        self._world = MPI.COMM_WORLD
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        self._everyone = tuple(range(self.size))
        self._groups: dict[Ranks, Any] = {}
        self._sent = MessagesInFlight() if sent is None else sent
        self._watch = watch
        self._channel = channel

    def for_graph(self, number: int) -> MpiComm:
        """See `Communicator`."""
        return MpiComm(self._watch, GRAPH_CHANNELS + number, self._sent)

    def beside(self) -> MpiComm:
        """See `Communicator`."""
        return MpiComm(self._watch, SIDE_CHANNEL_OFFSET + self._channel, self._sent)

    def say(self, text: str) -> None:
        """See `Communicator`."""
        if self._watch is not None:
            self._watch.say(text)

    def all_reduce(self, array: Array, op: str, ranks: Ranks) -> Array:
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        if len(ranks) == 1:
            return np.array(array)
        if array.nbytes <= SMALL or array.size < len(ranks):
            return combine(list(self._gather(array, ranks)), op)
        flat = array.reshape(-1)
        count = len(ranks)
        padded = -(-flat.size // count) * count
        if padded != flat.size:
            flat = np.concatenate([flat, np.zeros(padded - flat.size, flat.dtype)])
        mine = combine(list(self._swap(flat.reshape(count, -1), ranks)), op)
        return self._gather(mine, ranks).reshape(-1)[: array.size].reshape(array.shape)

    def all_gather(self, array: Array, ranks: Ranks, axis: int = 0) -> Array:
        array = np.ascontiguousarray(array)
        if len(ranks) == 1:
            return np.array(array)
        parts = self._gather(array, ranks)
        if axis == 0:
            return parts.reshape(len(ranks) * array.shape[0], *array.shape[1:])
        return np.concatenate(list(parts), axis)

    def reduce_scatter(self, array: Array, op: str, ranks: Ranks, axis: int = 0) -> Array:
        if len(ranks) == 1:
            return np.array(array)
        return combine(list(self._swap(np.stack(pieces(array, len(ranks), axis)), ranks)), op)

    def all_to_all(self, array: Array, ranks: Ranks, split_dim: int, concat_dim: int) -> Array:
        if len(ranks) == 1:
            return np.array(array)
        array, count = np.asarray(array), len(ranks)
        if array.shape[split_dim] % count:
            raise ValueError(f"dimension {split_dim} of shape {array.shape} does not divide by {count} ranks")
        shape = list(array.shape)
        shape[split_dim] //= count
        shape[concat_dim] *= count
        result = np.empty(shape, array.dtype)
        sent, arriving = _parts(array, count, split_dim), _parts(result, count, concat_dim)
        comm = self._group(ranks)
        with self._waiting(ranks):
            comm.Alltoall(sent, arriving)
        sent[-1].Free()
        arriving[-1].Free()
        return result

    def exchange_into(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        comm, tag = self._world, _EXCHANGE_TAG + self._channel % _EXCHANGE_TAGS
        messages = [_strided(array) for _, array in receives]
        requests = [comm.Irecv(message, source, tag) for (source, _), message in zip(receives, messages, strict=True)]
        to, of = tuple(target for target, _ in sends), tuple(source for source, _ in receives)
        with self._messages(to, of, self._channel):
            for target, array in sends:
                messages.append(_strided(array))
                requests.append(comm.Isend(messages[-1], target, tag))
            MPI.Request.Waitall(requests)
        for *_, kind in messages:
            if kind is not MPI.BYTE:
                kind.Free()

    def broadcast(self, array: Array, root: int, ranks: Ranks) -> Array:
        result = np.array(array, order="C")
        if len(ranks) > 1:
            comm = self._group(ranks)
            with self._waiting(ranks):
                comm.Bcast(_bytes(result), ranks.index(root))
        return result

    def send(self, array: Array, rank: int, tag: int = 0) -> None:
        """Send an array and return at once: two ranks may both send before either receives."""
        contiguous = np.array(array, order="C")
        with self._messages((rank,), (), _BY_TAG + tag):
            request = self._world.Isend(_bytes(contiguous), rank, tag)
        self._sent.add(request, contiguous)

    def receive(self, rank: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        result = np.empty(shape, dtype)
        status = MPI.Status()
        with self._messages((), (rank,), _BY_TAG + tag):
            self._world.Probe(rank, tag, status)
            arriving = status.Get_count(MPI.BYTE)
            if arriving != result.nbytes:
                raise ValueError(
                    f"rank {self.rank} expects {result.nbytes} bytes from rank {rank} under tag {tag} "
                    f"({result.dtype.name} of shape {result.shape}), but {arriving} arrive"
                )
            self._world.Recv(_bytes(result), rank, tag)
        return result

    def barrier(self, ranks: Ranks) -> None:
        comm = self._group(ranks)
        with self._waiting(ranks):
            comm.Barrier()

    def finalize(self) -> None:
        """Leave MPI; return once every rank of the job has called it."""
        self._sent.end()
        end_mpi()

    def _gather(self, array: Array, ranks: Ranks) -> Array:
        """Return the arrays of all members, of shape (members, *array.shape)."""
        result = np.empty((len(ranks), *array.shape), array.dtype)
        comm = self._group(ranks)
        with self._waiting(ranks):
            comm.Allgather(_bytes(array), _bytes(result))
        return result

    def _swap(self, rows: Array, ranks: Ranks) -> Array:
        """Send row i to member i; return the received rows, row i from member i."""
        result = np.empty_like(rows)
        comm = self._group(ranks)
        with self._waiting(ranks):
            comm.Alltoall(_bytes(rows), _bytes(result))
        return result

    def _group(self, ranks: Ranks) -> Any:
        found = self._groups.get(ranks)
        if found is None:
            with self._waiting(ranks):
                members = self._world.Get_group().Incl(ranks)
                found = self._world.Create_group(members, group_of(self._channel, ranks) % _CREATION_TAGS)
            self._groups[ranks] = found
        return found

    def _waiting(self, ranks: Ranks) -> Any:
        return nullcontext() if self._watch is None else self._watch.in_group(ranks, self._channel)

    def _messages(self, to: Ranks, of: Ranks, channel: int) -> Any:
        return nullcontext() if self._watch is None else self._watch.for_messages(to, of, channel)


def _bytes(array: Array) -> list[Any]:
    return [array.reshape(-1).view(np.uint8), MPI.BYTE]


def _strided(array: Array) -> list[Any]:
    """Return the elements of an array, contiguous or not, as an MPI message. MPI packs them in small chunks while
    sending, so that the array is not copied."""
    if array.flags.c_contiguous:
        return _bytes(array)
    return [_memory(array), 1, _kind(array).Commit()]


def _parts(array: Array, count: int, axis: int) -> list[Any]:
    """Return the `count` equal slices of an array along `axis`, not copied, as the message of a collective."""
    rows = array.shape[axis] // count
    part = _kind(array[(slice(None),) * axis + (slice(0, rows),)])
    next_part = part.Create_resized(0, rows * array.strides[axis])
    part.Free()
    return [_memory(array), 1, next_part.Commit()]


def _memory(array: Array) -> Any:
    return MPI.buffer.fromaddress(array.ctypes.data, array.nbytes)


def _kind(array: Array) -> Any:
    """Return the MPI datatype of an array's elements in their order."""
    block, dims = array.itemsize, array.ndim
    while dims and array.strides[dims - 1] == block:
        dims -= 1
        block *= array.shape[dims]
    kind = MPI.BYTE.Create_contiguous(block)
    for count, stride in zip(array.shape[:dims][::-1], array.strides[:dims][::-1], strict=True):
        outer = kind.Create_hvector(count, 1, stride)
        kind.Free()
        kind = outer
    return kind
