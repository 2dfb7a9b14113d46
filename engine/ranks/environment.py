"""What a rank reads from its environment of the launcher that started it. No other file reads such variables.

Imports nothing heavy: the number of BLAS threads must be set before NumPy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def mpi_size(environment: Mapping[str, str] | None = None) -> int:
    """The number of ranks that mpirun started, 0 where it did not start this process."""
    text = (os.environ if environment is None else environment).get("OMPI_COMM_WORLD_SIZE", "")
    return int(text) if text.isdigit() else 0


def mpi_rank() -> int:
    """This process's rank as mpirun says, 0 without it."""
    text = os.environ.get("OMPI_COMM_WORLD_RANK", "")
    return int(text) if text.isdigit() else 0


def local_place() -> tuple[int, int]:
    """This process's number among the ranks on this host, and how many they are."""
    found = [os.environ.get(f"OMPI_COMM_WORLD_LOCAL_{name}", "") for name in ("RANK", "SIZE")]
    if all(text.isdigit() for text in found):
        return int(found[0]), int(found[1])
    return mpi_rank(), max(1, mpi_size())


def job_name() -> str:
    """A name that all ranks of this job share and no other job has."""
    return (
        os.environ.get("PMIX_NAMESPACE") or os.environ.get("OMPI_MCA_ess_base_jobid") or f"job-{os.getppid()}"
    )


def limit_threads(local_ranks: int = 0) -> None:
    """Give every rank its share of the cores: one BLAS thread where ranks outnumber cores. Values that
    the user set are kept. Without effect once NumPy is loaded."""
    local = local_ranks or int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "0") or 0)
    if local <= 1:
        return
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, min(mine, (os.cpu_count() or 1) // local))
    for name in _THREADS:
        os.environ.setdefault(name, str(share))


def session_folder() -> str:
    """The folder that this rank's mpirun keeps while the job runs; "" without one."""
    return os.environ.get("PMIX_SERVER_TMPDIR", "")


def place() -> dict[str, int]:
    """Rank and size of this process, in the job and on its host, as Open MPI's launcher (or RANK_ID, RANK_SIZE) says;
    one rank without them."""
    rank = _number("OMPI_COMM_WORLD_RANK", "RANK_ID", default=0)
    size = _number("OMPI_COMM_WORLD_SIZE", "RANK_SIZE", default=1)
    return {
        "rank": rank,
        "size": size,
        "local_rank": _number("OMPI_COMM_WORLD_LOCAL_RANK", default=rank),
        "local_size": _number("OMPI_COMM_WORLD_LOCAL_SIZE", default=size),
    }


def _number(*names: str, default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return default
