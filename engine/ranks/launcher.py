"""Runs the jobs of `mspc launch`: ranks under mpirun, each with a log of its own, restarted where an option says so."""

from __future__ import annotations

import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from mspc.engine.ranks.ended import CONSEQUENCES, Ended, complain, lost_host
from mspc.engine.ranks.hosts import Host
from mspc.engine.ranks.mpirun import end_with_parent, forwarding, mpirun_command, mpirun_environment
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass

WORKER = Path(__file__).with_name("worker.py")
SCHEDULER_LOG = "scheduler.log"
RESTARTS = "MSPC_RESTARTS"
"""The variable that tells ranks how often their job has been started again."""
LOOK = 0.2
"""Seconds between two looks at the ranks' logs."""
_FORWARDED = ("PATH", "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "DATA_PATH")


@dataclass(frozen=True)
class LaunchJob:
    """What is started, and where.

    command: of every rank. ranks: how many. hosts: where; () for this one. folder: of the logs. log_name: of a rank's,
    with `{rank}` and `{local_rank}`. cores: see `worker`. variables: names that other hosts get too. shown: ranks whose
    logs are printed while they grow; None for all. start_within: seconds for the hosts to come up.
    """

    command: tuple[str, ...]
    ranks: int
    folder: Path
    hosts: tuple[Host, ...] = ()
    log_name: str = "worker_{rank}.log"
    cores: str = ""
    variables: tuple[str, ...] = ()
    shown: tuple[int, ...] | None = ()
    start_within: int = 600

    def log(self, rank: int) -> Path:
        """The log of a rank, where it is on this host."""
        index = bisect_right(self._ends, rank)
        local = rank - (self._ends[index - 1] if index else 0)
        return self.folder / self.log_name.format(rank=rank, local_rank=local)

    @cached_property
    def _ends(self) -> list[int]:
        """Return for each host but the last the first rank after its own."""
        return list(accumulate(host.slots for host in self.hosts[:-1]))

    def shows(self, rank: int) -> bool:
        """Whether a rank's log is printed while it grows."""
        return self.shown is None or rank in self.shown

    def mpirun(self) -> list[str]:
        """The command line of mpirun."""
        worker = [sys.executable, "-I", str(WORKER), str(self.folder), self.log_name, self.cores, *self.command]
        found = mpirun_command(self.ranks, worker, self.hosts, self.variables)
        if self.hosts:
            found[1:1] = ["--prtemca", "prte_startup_timeout", str(self.start_within)]
        return found


def launch(job: LaunchJob, restarts: int) -> int:
    """Run the job to its end and return its status; 0 where all ranks ended well. Where one fails, the first one's last
    lines are printed, and the job starts again up to `restarts` times. Ctrl-C and SIGTERM end it."""
    for number in range(restarts + 1):
        begins = {rank: _size(job.log(rank)) if number else 0 for rank in range(job.ranks)}
        status, ended_by, places = _run(job, number, dict(begins))
        if status:
            said, logs = _said(job), [job.log(rank) for rank in range(job.ranks)]
            Ended(status, said, job.folder / SCHEDULER_LOG, logs, begins, job.shows, job.hosts).explain()
        _show_all(job, places, over=True)
        status = 128 - status if status < 0 else status
        if not status or ended_by is not None or number == restarts:
            return status
        complain(f"note: restart {number + 1} of {restarts}")
    return 1


def _run(job: LaunchJob, number: int, places: dict[int, int]) -> tuple[int, int | None, dict[int, int]]:
    """(mpirun's status, the signal that this process got, bytes of the logs that were printed) of one start. places:
    bytes of the logs, by rank, that earlier starts wrote."""
    environment = {**mpirun_environment(), RESTARTS: str(number)}
    for rank in range(job.ranks if not number else 0):  # what a rank of an earlier job printed is not this one's
        job.log(rank).unlink(missing_ok=True)
    with open(job.folder / SCHEDULER_LOG, "ab" if number else "wb") as log:
        try:
            child = subprocess.Popen(
                job.mpirun(), env=environment, process_group=0, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=end_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise MspcError(f"cannot start mpirun: {error.strerror}") from None
        with forwarding(child) as ended_by:
            while (status := child.poll()) is None:
                _show_all(job, places)
                time.sleep(LOOK)
            _show_all(job, places)
    if ended_by:
        return 128 + ended_by[0], ended_by[0], places
    if not status and lost_host(_said(job)) is not None:
        status = 1  # mpirun has ended the ranks then, and is content with that
    return status, None, places


def _show_all(job: LaunchJob, places: dict[int, int], over: bool = False) -> None:
    """Print what the shown ranks have written from these bytes on, but until the job is `over` not what they say of
    having been left: the cause is printed first."""
    for rank in filter(job.shows, range(job.ranks)):
        places[rank] += _show(job.log(rank), places[rank], over)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _show(path: Path, begin: int, over: bool) -> int:
    """Print complete lines of a log from a byte on; how many bytes they are."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read()
    except OSError:
        return 0
    last = None if over else CONSEQUENCES.search(data)
    data = data[: data.rfind(b"\n", 0, None if last is None else last.start()) + 1]
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    return len(data)


def _said(job: LaunchJob) -> bytes:
    """What mpirun has printed."""
    try:
        return (job.folder / SCHEDULER_LOG).read_bytes()
    except OSError:
        return b""


def exported(environment: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Names of the variables that ranks on other hosts get: those that options name, and what Python and mspc read."""
    found = {name for name in environment if name.startswith(("MSPC_", "MS_")) or name in _FORWARDED}
    yield from sorted({*names, *found, RESTARTS})
