"""Runs every collective on this rank and returns or prints what came out, for comparison between
communicators."""

import hashlib
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np


def results(comm: Any) -> list[np.ndarray]:
    """The results of all collectives on this rank, among them large ones and element types MPI does not
    know."""
    rank, size = comm.rank, comm.size
    everyone = tuple(range(size))
    turned = everyone[1:] + everyone[:1]
    rng = np.random.default_rng(rank)
    found: list[np.ndarray] = []
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64):
        for rows in (size, 1000 * size):
            x = (10 * rng.standard_normal((rows, 2 * size))).astype(dtype)
            found.append(comm.all_reduce(x, "sum", everyone))
            found.append(comm.all_reduce(x[:, :1].T, "max", turned))
            found.append(comm.all_gather(x, everyone, 0))
            found.append(comm.all_gather(x, turned, 1))
            found.append(comm.reduce_scatter(x, "sum", turned, 0))
            found.append(comm.reduce_scatter(x, "min", everyone, 1))
            found.append(comm.all_to_all(x, turned, 1, 0))
            found.append(comm.all_to_all(x.T, everyone, 1, 0))
            found.append(comm.all_to_all(x.reshape(-1, 2, size)[:, ::-1], turned, 0, 2))
    scalar = np.float32(rank + 1)
    found.append(comm.all_reduce(scalar, "prod", everyone))
    found.append(comm.all_reduce(np.array([rank % 2 == 0]), "min", everyone))
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = [(after, x[:1]), (before, x[1:3]), (after, x[3:4])]
    receives = [
        (before, (1, 2 * size), x.dtype),
        (after, (2, 2 * size), x.dtype),
        (before, (1, 2 * size), x.dtype),
    ]
    found += comm.exchange(sends, receives)
    found.append(strided_exchange(comm))
    found.append(comm.broadcast(x, size - 1, everyone))
    if size > 2 and rank in (0, size - 1):
        found.append(comm.all_reduce(x, "sum", (size - 1, 0)))
    comm.barrier(everyone)
    if rank == 0:
        comm.send(x, 1, 5)
    if rank == 1:
        found.append(comm.receive(0, 5, x.shape, x.dtype))
    return found


def strided_exchange(comm: Any) -> np.ndarray:
    """Columns of one array to columns of another, turned ones among them, on all ranks at once."""
    rank, size = comm.rank, comm.size
    source = np.arange(1000.0 * 8 * size).reshape(1000, 8, size) + rank
    target = np.zeros((size, 4, 1000, 2))
    others = [r for r in range(size) if r != rank]
    sends = [(r, source[:, 2:6:2, r : r + 1].T[:, ::-1]) for r in others]
    comm.exchange_into(sends, [(r, target[r : r + 1, 1:3, :, 1]) for r in others])
    return target


def memory_of_an_exchange(comm: Any) -> float:
    """Bytes that an exchange of columns allocates besides its result, as a part of them; or an all-to-all, if more."""
    rank, size = comm.rank, comm.size
    source, target = np.ones((600, 100 * size)), np.empty((600 * size, 100))
    others = [r for r in range(size) if r != rank]
    tracemalloc.start()
    sends = [(r, source[:, 100 * r : 100 * r + 100]) for r in others]
    comm.exchange_into(sends, [(r, target[600 * r : 600 * r + 600]) for r in others])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    moved = comm.all_to_all(source, (*range(size),), 1, 0)
    peak = max(peak, tracemalloc.get_traced_memory()[1] - moved.nbytes)
    tracemalloc.stop()
    return peak / target.nbytes


def digest(arrays: list[np.ndarray]) -> str:
    """One text for many arrays: shapes, element types and bits."""
    whole = hashlib.sha256()
    for array in arrays:
        array = np.asarray(array)
        whole.update(f"{array.shape}{array.dtype}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


if __name__ == "__main__":
    from mspc.runtime.comm.mpi import MpiComm

    own = MpiComm()
    print(f"{own.rank} {digest(results(own))}", flush=True)
    if (part := memory_of_an_exchange(own)) > 0.05:
        raise SystemExit(f"rank {own.rank}: an exchange allocates {part} of what it receives")
    own.finalize()
