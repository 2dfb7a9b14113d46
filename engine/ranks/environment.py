"""Environment variables that a launcher sets for a rank. No other module reads them.

Imports nothing heavy: the number of BLAS threads must be set before NumPy is imported.
"""

from __future__ import annotations

import os
import re

from mspc.ir.late_dataclass import dataclass

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class _Launcher:
    """Variables in which a launcher stores rank and size, of the job and of its part on this host.

    marks: variables that exist only if the launcher started this process as a rank of MPI.
    """

    rank: str
    size: str
    local_rank: str
    local_size: str
    marks: tuple[str, ...] = ()


_LAUNCHERS = (
    _Launcher(*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    # srun speaks PMIx or PMI2 with MPI's ranks; in a batch script, which has neither, it sets the SLURM_ names too.
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", ("PMIX_RANK",)),
    _Launcher("PMI_RANK", "PMI_SIZE", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", ("PMI_FD",)),
)


def _launcher() -> _Launcher | None:
    for launcher in _LAUNCHERS:
        if all(mark in os.environ for mark in launcher.marks):
            rank, size = (_number(os.environ.get(name, "")) for name in (launcher.rank, launcher.size))
            if size is not None and (rank is None or rank < size):
                return launcher
    return None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def mpi_size() -> int:
    """Return the number of ranks that mpirun or srun started, 0 if none of them started this process."""
    launcher = _launcher()
    return int(os.environ[launcher.size]) if launcher else 0


def mpi_rank() -> int:
    """Return this process's rank according to its launcher, 0 without one."""
    launcher = _launcher()
    return _number(os.environ.get(launcher.rank, "") if launcher else "") or 0


def local_place() -> tuple[int, int]:
    """Return (this process's index among the ranks on this host, number of ranks on this host)."""
    launcher = _launcher()
    rank = _number(os.environ.get(launcher.local_rank, "") if launcher else "")
    size = re.match("[0-9]{1,9}", os.environ.get(launcher.local_size, "") if launcher else "")  # "2(x3),1" on Slurm
    if rank is not None and size:
        return rank, int(size[0])
    return mpi_rank(), max(1, mpi_size())


def job_name() -> str:
    """Return a name that is shared by exactly the ranks of this job on this host."""
    job = os.environ.get("PMIX_NAMESPACE") or os.environ.get("OMPI_MCA_ess_base_jobid") or f"job-{os.getppid()}"
    return f"{job}-{os.uname().nodename}" if hasattr(os, "uname") else job


def limit_threads(local_ranks: int = 0) -> None:
    """Limit every rank to its share of the cores: one BLAS thread if ranks outnumber cores. Values set by the user
    remain. No effect once NumPy is loaded."""
    local = local_ranks or (local_place()[1] if mpi_size() else 0)
    if local <= 1:
        return
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, min(mine, (os.cpu_count() or 1) // local))
    for name in _THREADS:
        os.environ.setdefault(name, str(share))


def session_folder() -> str:
    """Return the folder that this rank's mpirun keeps while the job runs; "" without one."""
    return os.environ.get("PMIX_SERVER_TMPDIR", "")


def place() -> dict[str, int]:
    """Return rank and size of this process, in the job and on its host, according to its launcher; one rank without
    one. claimed: the number in RANK_SIZE if no launcher started any rank."""
    if not mpi_size():
        claimed = _number(os.environ.get("RANK_SIZE", ""))
        return {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "claimed": 1 if claimed is None else claimed}
    local_rank, local_size = local_place()
    return {"rank": mpi_rank(), "size": mpi_size(), "local_rank": local_rank, "local_size": local_size, "claimed": 0}


# Discovery of the processes that one launcher started on this host, before they report their ranks themselves.


_RANK = re.compile(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|SLURM_PROCID)=(\d+)(?=\0|$)")


def ranks_of_this_launcher() -> dict[int, int]:
    """Return the processes with the same launcher as this one, by rank, from /proc; {} if that does not exist."""
    launcher = os.getppid()
    found: dict[int, int] = {}
    try:
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return found
    for process in processes:
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent != launcher:
                continue
            with open(f"/proc/{process}/environ", "rb") as file:
                rank = _RANK.search(file.read())
        except (OSError, ValueError, IndexError):
            continue
        if rank:
            found[int(rank[1])] = process
    return found
