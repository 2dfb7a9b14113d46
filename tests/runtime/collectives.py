"""Runs every collective on this rank and returns or prints what came out, for comparison between
communicators."""

from __future__ import annotations

import hashlib
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
    found.append(comm.broadcast(x, size - 1, everyone))
    if size > 2 and rank in (0, size - 1):
        found.append(comm.all_reduce(x, "sum", (size - 1, 0)))
    comm.barrier(everyone)
    if rank == 0:
        comm.send(x, 1, 5)
    if rank == 1:
        found.append(comm.receive(0, 5, x.shape, x.dtype))
    return found


def digest(arrays: list[np.ndarray]) -> str:
    """One text for many arrays: shapes, element types and bits."""
    whole = hashlib.sha256()
    for array in arrays:
        array = np.asarray(array)
        whole.update(f"{array.shape}{array.dtype}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


if __name__ == "__main__":
    from mspc.runtime.comm_mpi import MpiComm

    own = MpiComm()
    print(f"{own.rank} {digest(results(own))}", flush=True)
    own.finalize()
