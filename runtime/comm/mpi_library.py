"""Start and end of MPI with Python's global lock released. The only module that imports mpi4py.

Both calls wait for all ranks. mpi4py makes them with the lock held, so that no thread of a rank could report the
missing ranks.
"""

from __future__ import annotations

import ctypes

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = True

from mpi4py import MPI  # noqa: E402  # it starts MPI as its settings say, which are set above

__all__ = ["MPI", "end_mpi", "start_mpi"]


def start_mpi() -> None:
    """Start MPI, unless the script has."""
    if MPI.Is_initialized():
        return
    try:
        start = ctypes.CDLL(MPI.__file__).MPI_Init_thread
    except (OSError, AttributeError):
        MPI.Init_thread()
        return
    given = ctypes.c_int()
    if start(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(given)):
        raise RuntimeError("MPI_Init_thread failed")


def end_mpi() -> None:
    """Leave MPI; return once every rank of the job has called this."""
    try:
        end = ctypes.CDLL(MPI.__file__).MPI_Finalize
    except (OSError, AttributeError):
        MPI.Finalize()
        return
    end()
