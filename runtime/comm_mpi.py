"""Collectives through MPI (mpi4py, host buffers). The only file that imports mpi4py.

Data travel as bytes and are combined here in the order of the group's ranks: MPI's own reductions may
use another order on every rank count and do not know bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mspc.ops.products import limit_blas
from mspc.runtime.comm import Array, Ranks, combine, pieces
from mspc.runtime.watch import Watch

SMALL = 8192
"""Bytes up to which an all-reduce gathers everything in one message instead of scattering the sum first."""

_EXCHANGE_TAG = 2**14


class MpiComm:
    """The communicator of this process. Every group gets an MPI communicator on its first use, made by
    its members only, in the order in which they meet; so no rank outside a group can hold it up.

    Args:
        channel: keeps what is done outside of graphs apart from the graphs' own collectives.
        watch: told when this rank waits for others, so that a rank that waits for ever can be named.
    """

    def __init__(self, watch: Watch | None = None, channel: int = 0) -> None:
        limit_blas()
        self._world = MPI.COMM_WORLD
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        self._everyone = tuple(range(self.size))
        self._groups: dict[Ranks, Any] = {}
        self._watch = watch
        self._channel = channel

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
        return parts.reshape(-1, *array.shape[1:]) if axis == 0 else np.concatenate(list(parts), axis)

    def reduce_scatter(self, array: Array, op: str, ranks: Ranks, axis: int = 0) -> Array:
        if len(ranks) == 1:
            return np.array(array)
        return combine(list(self._swap(np.stack(pieces(array, len(ranks), axis)), ranks)), op)

    def all_to_all(self, array: Array, ranks: Ranks, split_dim: int, concat_dim: int) -> Array:
        if len(ranks) == 1:
            return np.array(array)
        return np.concatenate(list(self._swap(np.stack(pieces(array, len(ranks), split_dim)), ranks)), concat_dim)

    def exchange(
        self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, tuple[int, ...], Any]]
    ) -> list[Array]:
        found = [np.empty(shape, dtype) for _, shape, dtype in receives]
        comm = self._world
        requests = [
            comm.Irecv(_bytes(array), source, _EXCHANGE_TAG)
            for (source, _, _), array in zip(receives, found, strict=True)
        ]
        kept = [np.ascontiguousarray(array) for _, array in sends]
        requests += [
            comm.Isend(_bytes(array), target, _EXCHANGE_TAG) for (target, _), array in zip(sends, kept, strict=True)
        ]
        with self._waiting(tuple(source for source, _, _ in receives), False):
            MPI.Request.Waitall(requests)
        return found

    def broadcast(self, array: Array, root: int, ranks: Ranks) -> Array:
        result = np.array(array, order="C")
        if len(ranks) > 1:
            comm = self._group(ranks)
            with self._waiting(ranks):
                comm.Bcast(_bytes(result), ranks.index(root))
        return result

    def send(self, array: Array, rank: int, tag: int = 0) -> None:
        kept = np.ascontiguousarray(array)
        with self._waiting((rank,), False):
            self._world.Send(_bytes(kept), rank, tag)

    def receive(self, rank: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        result = np.empty(shape, dtype)
        with self._waiting((rank,), False):
            self._world.Recv(_bytes(result), rank, tag)
        return result

    def barrier(self, ranks: Ranks) -> None:
        comm = self._group(ranks)
        with self._waiting(ranks):
            comm.Barrier()

    def finalize(self) -> None:
        """Leave MPI; returns once every rank of the job has called it."""
        MPI.Finalize()

    def _gather(self, array: Array, ranks: Ranks) -> Array:
        """Shape (members, *array.shape)."""
        result = np.empty((len(ranks), *array.shape), array.dtype)
        comm = self._group(ranks)
        with self._waiting(ranks):
            comm.Allgather(_bytes(array), _bytes(result))
        return result

    def _swap(self, rows: Array, ranks: Ranks) -> Array:
        """Row i goes to member i; row i of the result comes from member i."""
        result = np.empty_like(rows)
        comm = self._group(ranks)
        with self._waiting(ranks):
            comm.Alltoall(_bytes(rows), _bytes(result))
        return result

    def _group(self, ranks: Ranks) -> Any:
        found = self._groups.get(ranks)
        if found is None:
            with self._waiting(ranks):
                found = self._world.Create_group(self._world.Get_group().Incl(ranks), self._channel)
            self._groups[ranks] = found
        return found

    def _waiting(self, ranks: Ranks, meets: bool = True) -> Any:
        return _NOTHING if self._watch is None else self._watch.waiting(ranks, meets, self._channel)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NOTHING = _Nothing()


def _bytes(array: Array) -> list[Any]:
    return [array.reshape(-1).view(np.uint8), MPI.BYTE]
